"""Searches for the shim's secret and for hidden texts of cases, each proven to be able to find."""

from __future__ import annotations

from fde_ray.sandbox.probes.records import Attempt, Control, Group, Verdict


def _search(name: str, what: str, call: str, limit_s: float = 60.0) -> Attempt:
    return Attempt(
        id=name, group=Group.HIDDEN, what=what, call=f"secrets.{call}", limit_s=limit_s,
        expected=Verdict.BLOCKED, control=Control.OWN,
    )  # fmt: skip


ATTEMPTS = (
    _search("secret_in_environment", "secret or case text in an environment", "in_environments"),
    _search("secret_in_memory", "secret or case text in the memory of a process", "in_memory"),
    _search("secret_in_files", "secret or case text in any file", "in_files", 120.0),
    _search("secret_in_descriptors", "the same behind any open descriptor", "in_descriptors"),
    _search("other_processes", "processes of the shim or of the host", "other_processes"),
)
