"""Attempts, lines and pods as the suite meets them."""

from __future__ import annotations

from typing import Any

from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.sandbox.probes.building import Site
from fde_ray.sandbox.probes.records import Attempt, Check, Control, Group, Said, Verdict
from fde_ray.sandbox.probes.weighing import Around, Heard

Object = dict[str, Any]
LOOT: Object = {
    "port": 8001, "subject": "aa.1", "other_subject": "bb.1", "secret": "own-secret",
    "token": "a.b.c", "replayed": "d.e.f", "expired": "g.h.i", "sealed": "sealed-two",
}  # fmt: skip
WELL = Check(name="the node is well", holds=True)


def make_attempt(**changes: Any) -> Attempt:
    facts: Object = {
        "id": "door",
        "group": Group.HOST,
        "what": "a door",
        "expected": Verdict.BLOCKED,
        "control": Control.LOOSE,
        "call": "host.open_any",
    }
    return Attempt(**facts | changes)


def said(outcome: Any, evidence: str = "seen", name: str = "door") -> Said:
    return Said(id=name, outcome=outcome, evidence=evidence)


def line(outcome: str, evidence: str = "seen", name: str = "door") -> Object:
    return {"id": name, "outcome": outcome, "evidence": evidence, "took_s": 0.1}


def make_pod(*, reason: str = "", **ended: Object) -> Object:
    statuses = [
        {"name": name, "restartCount": 0, "state": {"terminated": facts}}
        for name, facts in ended.items()
    ]
    status: Object = {"phase": "Failed" if reason else "Succeeded", "containerStatuses": statuses}
    return {"status": status | ({"reason": reason, "message": "too full"} if reason else {})}


def make_heard(
    *agent: Object, shim: tuple[Object, ...] = (), pod: Object | None = None, node: Check = WELL
) -> Heard:
    gate = {"kind": "gate", "shut": True, "took_s": 5.0}
    found = make_pod() if pod is None else pod
    return Heard(found, (gate, *shim), agent, 100.0, 110.0, node)


def make_around(**changes: Any) -> Around:
    facts: Object = {
        "tag": "ab",
        "namespace": "runs",
        "packets": None,
        "traces": None,
        "log": None,
        "plane": None,
        "beats": [98.0 + half / 2 for half in range(32)],
    }
    return Around(**facts | changes)


def make_site() -> Site:
    return Site(
        profile=KubernetesProfile(namespace="runs", image="localhost/x:1", pull="Never"),
        free_namespace="runs-free",
        plane="http://10.0.0.2:8000",
        forbidden=("10.0.0.1:443",),
        secret="5ec2e7" * 8,
        sealed="sealed-text",
        tag="ab",
        address="10.0.0.2",
        loot=LOOT,
    )
