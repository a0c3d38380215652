"""What is kept of a pod: the little that tells whose it is and how it fares.

A pod as the server sends it has ten thousand bytes; a watcher of thousands of them keeps a few
hundred each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from sys import intern
from typing import Any, Literal, NamedTuple

from . import contract
from .names import SUBJECT, shard_of

Object = dict[str, Any]
MAX_MESSAGE = 4096
_NOT_OURS = 300


class ContainerView(NamedTuple):
    """exit_code: of a container that has ended. message: only the shim's is kept; the agent writes
    its own."""

    name: str
    state: Literal["waiting", "running", "terminated"]
    reason: str
    message: str
    exit_code: int | None
    restarts: int
    began: bool
    """It runs, or has run."""
    finished_at: float | None = None


class Condition(NamedTuple):
    kind: str
    holds: bool
    reason: str
    message: str


class PodView(NamedTuple):
    """Times are seconds since the epoch by the server's clock."""

    name: str
    uid: str
    version: str
    subject: str
    run: str
    attempt: str
    role: str
    shard: int
    spec: str
    managed: bool
    phase: str
    reason: str
    message: str
    node: str
    created_at: float | None
    deleting_at: float | None
    """When the pod is to be gone that somebody deletes; None = nobody does."""
    deletion_asked_at: float | None
    conditions: tuple[Condition, ...]
    containers: tuple[ContainerView, ...]

    def container(self, name: str) -> ContainerView | None:
        return next((one for one in self.containers if one.name == name), None)

    def condition(self, kind: str) -> Condition | None:
        return next((one for one in self.conditions if one.kind == kind), None)

    @property
    def shim(self) -> ContainerView | None:
        return self.container(contract.SHIM)

    @property
    def agent(self) -> ContainerView | None:
        return self.container(contract.AGENT)

    @property
    def has_begun(self) -> bool:
        """Whether the shim runs, or has run."""
        return self.shim is not None and self.shim.began


def pod_view(pod: Any) -> PodView:
    """Return what is kept; ValueError when it is no pod."""
    metadata = _object(_object(pod).get("metadata"))
    name, uid = metadata.get("name"), metadata.get("uid")
    if not isinstance(name, str) or not isinstance(uid, str) or not name or not uid:
        raise ValueError("this is no pod: it has no name or no uid")
    labels, spec, status = (
        _object(metadata.get("labels")),
        _object(pod.get("spec")),
        _object(pod.get("status")),
    )
    subject = _text(_object(metadata.get("annotations")).get(SUBJECT))
    deleting_at = _time(metadata.get("deletionTimestamp"))
    grace = metadata.get("deletionGracePeriodSeconds")
    asked_at = deleting_at
    if deleting_at is not None and isinstance(grace, int):
        asked_at = deleting_at - grace
    return PodView(
        name=name,
        uid=uid,
        version=_text(metadata.get("resourceVersion")),
        subject=subject,
        run=_text(labels.get(contract.LABEL_RUN)),
        attempt=_text(labels.get(contract.LABEL_ATTEMPT)),
        role=intern(_text(labels.get(contract.LABEL_ROLE))),
        shard=_shard(labels.get(contract.LABEL_SHARD), subject),
        spec=_text(labels.get(contract.LABEL_SPEC)),
        managed=labels.get(contract.LABEL_MANAGED) == contract.MANAGED,
        phase=intern(_text(status.get("phase")) or "Pending"),
        reason=intern(_text(status.get("reason"))),
        message=_text(status.get("message"))[:_NOT_OURS],
        node=intern(_text(spec.get("nodeName"))),
        created_at=_time(metadata.get("creationTimestamp")),
        deleting_at=deleting_at,
        deletion_asked_at=asked_at,
        conditions=_conditions(status.get("conditions")),
        containers=_containers(status.get("containerStatuses")),
    )


def shim_words(pod: PodView) -> Object:
    """Return the shim's last state as it wrote it; {} = it wrote none."""
    shim = pod.shim
    if shim is None or shim.state != "terminated":
        return {}
    try:
        return _object(json.loads(shim.message))
    except ValueError:
        return {}


def _conditions(found: Any) -> tuple[Condition, ...]:
    """Return those that tell of trouble or of scheduling."""
    return tuple(
        Condition(
            intern(_text(one.get("type"))),
            one.get("status") == "True",
            intern(_text(one.get("reason"))),
            _text(one.get("message"))[:_NOT_OURS],
        )
        for one in map(_object, _array(found))
        if one.get("type") in ("PodScheduled", "DisruptionTarget")
    )


def _containers(found: Any) -> tuple[ContainerView, ...]:
    return tuple(_container(one) for one in map(_object, _array(found)) if one.get("name"))


def _container(status: Object) -> ContainerView:
    state = _object(status.get("state"))
    name = intern(_text(status.get("name")))
    ended, restarts = state.get("terminated"), status.get("restartCount")
    count = restarts if isinstance(restarts, int) else 0
    if isinstance(ended, dict):
        code, is_shim = ended.get("exitCode"), name == contract.SHIM
        return ContainerView(
            name,
            "terminated",
            intern(_text(ended.get("reason"))),
            _text(ended.get("message"))[:MAX_MESSAGE] if is_shim else "",
            code if isinstance(code, int) else None,
            count,
            began=True,
            finished_at=_time(ended.get("finishedAt")),
        )
    if isinstance(state.get("running"), dict):
        return ContainerView(name, "running", "", "", None, count, began=True)
    waits = _object(state.get("waiting"))
    message = _text(waits.get("message"))[:_NOT_OURS]
    began = count > 0 or bool(_object(status.get("lastState")))
    return ContainerView(name, "waiting", _text(waits.get("reason")), message, None, count, began)


def _shard(label: Any, subject: str) -> int:
    if isinstance(label, str) and label.isascii() and label.isdigit() and len(label) < 4:
        return int(label)
    return shard_of(subject)


def _time(value: Any) -> float | None:
    try:
        return datetime.fromisoformat(value).timestamp()
    except (TypeError, ValueError):
        return None


def _object(value: Any) -> Object:
    return value if isinstance(value, dict) else {}


def _array(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
