"""Processes that mean to outlive the kill switch. All of them are in one pod when it is turned."""

from __future__ import annotations

from fde_ray.sandbox.probes.records import Attempt, Control, Group, Verdict


def _survivor(name: str, what: str, call: str) -> Attempt:
    return Attempt(
        id=name, group=Group.DEADLINE, what=what, call=f"survivors.{call}",
        expected=Verdict.CONTAINED, control=Control.OWN,
    )  # fmt: skip


ATTEMPTS = (
    _survivor("own_session", "a process in a session of its own", "session"),
    _survivor("orphan", "a process without a parent", "orphan"),
    _survivor("deaf", "a process that ignores every signal", "deaf"),
    _survivor("hydra", "processes that replace each other", "hydra"),
    _survivor("stopped", "a process that is stopped and continued", "stopped"),
)
