"""Attempts on the shim and the plane, by a runner gone bad that may have stolen tokens, too.

Each runs beside the real shim, against the real run-plane. Its control is in it: it first does
the same with what is its own, a good token or its own connection.
"""

from __future__ import annotations

from typing import Any, Literal

from fde_ray.sandbox.probes.records import Attempt, Control, Group, Verdict


def _attempt(
    name: str,
    what: str,
    call: str,
    expected: Verdict = Verdict.BLOCKED,
    watched: Literal["", "plane"] = "",
    limit_s: float = 60.0,
    target: str = "",
    **options: Any,
) -> Attempt:
    return Attempt(
        id=name, group=Group.PLANE, what=what, call=call, expected=expected,
        control=Control.OWN, watched=watched, limit_s=limit_s, target=target, options=options,
    )  # fmt: skip


def _search(name: str, what: str, call: str) -> Attempt:
    return Attempt(
        id=name, group=Group.PLANE, what=what, call=f"secrets.{call}", limit_s=90.0,
        expected=Verdict.BLOCKED, control=Control.OWN,
    )  # fmt: skip


ATTEMPTS = (
    _attempt("second_control", "a second control connection", "forging.second_control"),
    _attempt("health_port", "answering the kubelet in its place", "forging.take_health_port"),
    _attempt("health_path", "the path of the kill switch", "forging.guess_health_path"),
    _attempt("signal_others", "stopping the shim", "forging.signal_others"),
    _attempt("relay_paths", "other paths of the plane by the relay", "forging.relay_paths"),
    _attempt("relay_spellings", "the same, spelled otherwise", "forging.relay_spellings"),
    _attempt("relay_smuggling", "a request hidden in another", "forging.relay_smuggling"),
    _attempt(
        "relay_proxy", "the shim's ports as a proxy", "forging.relay_as_proxy", target="api_service"
    ),
    _attempt("no_token", "the plane without a token", "stealing.without_token"),
    _attempt("wrong_secret", "a token for a wrong secret", "stealing.wrong_secret"),
    _attempt("forged_token", "a token of one's own making", "stealing.forged_tokens"),
    _attempt("expired_token", "a token that has expired", "stealing.expired_token"),
    _attempt("replayed_token", "a token of a shim of before", "stealing.replayed_token"),
    _attempt("other_roles", "paths of other roles with a stolen token", "stealing.other_roles"),
    _attempt("other_runs", "inputs of another run with a stolen token", "stealing.other_runs"),
    _attempt("early_commit", "an early commit with a stolen token", "stealing.early_commit"),
    _attempt("stretched_clock", "a clock that stands still", "stealing.stretched_clock"),
    _attempt(
        "forged_turn", "a turn that no agent said", "forging.forged_turn", Verdict.CONFINED, "plane"
    ),
    _attempt(
        "forged_control", "start, clock, scope and commit from below", "forging.forged_control",
        Verdict.CONFINED, "plane",
    ),
    _attempt(
        "health_flood", "more callers than the kill switch has room for", "forging.flood_health",
        Verdict.CONFINED, "plane", amount=120,
    ),
    _search("shim_environment", "the shim's secret in an environment", "in_environments"),
    _search("shim_memory", "the shim's secret in the memory of a process", "in_memory"),
    _search("shim_files", "the shim's secret in any file", "in_files"),
)  # fmt: skip
