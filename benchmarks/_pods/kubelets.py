"""Plays the part of kubelets whose pods end: one status for each, as they would write it.

KWOK starts simulated pods. What their shims leave as last words, and what evicts some of them, is
made up here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fde_ray.sandbox.kubernetes.contract import AGENT, SHIM
from fde_ray.sandbox.kubernetes.names import pod_identity

from .server import Server, side_by_side
from .sessions import End, end_of

Object = dict[str, Any]
_WORDS = json.dumps({"format": 1, "phase": "ended"})
_AT = "2026-01-01T00:00:00Z"
_MESSAGES = {
    "agent_resource": 'Usage of EmptyDir volume "m0" exceeds the limit "16Mi". ',
    "node_pressure": "The node was low on resource: memory. Threshold quantity: 100Mi.",
}


def status_of(end: End) -> Object:
    """Return the status of a pod that ends so."""
    if end == "ended":
        containers = [_ended(SHIM, 0, "Completed", _WORDS), _ended(AGENT, 0, "Completed")]
        return {"phase": "Succeeded", "containerStatuses": containers}
    return {
        "phase": "Failed",
        "reason": "Evicted",
        "message": _MESSAGES[end],
        "containerStatuses": [_ended(SHIM, 137, "Error"), _ended(AGENT, 137, "Error")],
    }


def _ended(name: str, code: int, reason: str, message: str = "") -> Object:
    terminated = {
        "exitCode": code,
        "reason": reason,
        "message": message,
        "startedAt": _AT,
        "finishedAt": _AT,
    }
    return {
        "name": name,
        "image": "simulated",
        "imageID": "simulated",
        "ready": False,
        "started": False,
        "restartCount": 0,
        "state": {"terminated": terminated},
    }


async def end_pods(server: Server, namespace: str, subjects: Sequence[str]) -> None:
    """Let the pods of all these sessions end, as fast as the server takes it."""

    async def ended(subject: str) -> None:
        name = pod_identity("solve", subject).name
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
        await server.merged(path, {"status": status_of(end_of(subject))})

    await side_by_side(subjects, ended, at_once=16)
