"""From lines of pods and signs around them to the facts of an attempt."""

from __future__ import annotations

from typing import Any

import pytest

from fde_ray.sandbox.probes.building import nonce_of
from fde_ray.sandbox.probes.judging import judged
from fde_ray.sandbox.probes.programs import harness, kernel
from fde_ray.sandbox.probes.records import Check, Control, Group, Verdict
from fde_ray.sandbox.probes.weighing import facts_of
from tests.sandbox.probes.builders import line, make_around, make_attempt, make_heard, make_pod

FENCED, LOOSE = (nonce_of("ab", "door", f"{kind} runs") for kind in ("fenced", "loose"))
HOST, CONTROL = "fenced-host", "loose-host"
OTHER = "fdeprobe000000"


def verdict(attempt: Any, heard: Any, **around: Any) -> tuple[Verdict, str]:
    return judged(attempt, facts_of(attempt, heard, make_around(**around)))


def test_a_pod_whose_gate_stayed_open_proves_nothing() -> None:
    attempt = make_attempt()
    pod = make_heard(line("refused"))._replace(
        shim=({"kind": "gate", "shut": False, "open": [["10.0.0.1", 443]]},)
    )
    found, why = verdict(attempt, {HOST: pod, CONTROL: make_heard(line("done"))})
    assert found is Verdict.UNPROVEN
    assert "10.0.0.1" in why


def test_without_its_target_an_attempt_is_unproven() -> None:
    attempt = make_attempt(group=Group.NETWORK, control=Control.UNFENCED, target="metadata")
    found, why = verdict(attempt, {"fenced-network": make_heard()})
    assert (found, why) == (Verdict.UNPROVEN, "there is no metadata to try it on")


@pytest.mark.parametrize(
    ("seen", "outcome", "expected"),
    [
        pytest.param(None, "done", "unproven", id="nobody could look"),
        pytest.param({LOOSE}, "done", "confined", id="only the control was seen"),
        pytest.param({LOOSE, FENCED}, "done", "open", id="it was seen"),
        pytest.param({OTHER}, "done", "unproven", id="who looked did not see the control"),
        pytest.param({FENCED}, "refused", "blocked", id="a refused process has a name, too"),
    ],
)
def test_traces_on_the_node_decide_about_what_succeeded(
    seen: set[str] | None, outcome: str, expected: str
) -> None:
    attempt = make_attempt(watched="trace", expected=Verdict.CONFINED)
    heard = {HOST: make_heard(line(outcome)), CONTROL: make_heard(line("done"))}
    traces = None if seen is None else frozenset(seen)
    assert verdict(attempt, heard, traces=traces)[0] == expected


def test_a_packet_at_the_decoy_convicts_even_a_refusal() -> None:
    attempt = make_attempt(group=Group.NETWORK, watched="packet", target="outside_ip")
    heard = {"fenced-network": make_heard(line("refused")), CONTROL: make_heard(line("done"))}
    assert verdict(attempt, heard, packets=frozenset({LOOSE}))[0] is Verdict.BLOCKED
    assert verdict(attempt, heard, packets=frozenset({LOOSE, FENCED}))[0] is Verdict.OPEN


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("<4>[1] host line\n<4>[2] second line\n", "confined"),
        ("<4>[1] guest line\n<4>[2] second line\n", "open"),
        ("<4>[9] nothing of either\n", "unproven"),
        (None, "unproven"),
    ],
)
def test_a_kernels_log_is_confined_only_if_it_is_not_the_nodes(
    log: str | None, expected: str
) -> None:
    attempt = make_attempt(watched="log", expected=Verdict.CONFINED)
    heard = {
        HOST: make_heard(line("done", "<4>[0] before | <4>[1] guest line")),
        CONTROL: make_heard(line("done", "<4>[2] second line")),
    }
    assert verdict(attempt, heard, log=log)[0] == expected


FIRST, LONG = "<6>[1.000001] first", f"<6>[2.000001] oom-kill: {'x' * 400}"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        pytest.param([FIRST, LONG], LONG[:90], id="one that is long"),
        pytest.param([FIRST, *[LONG] * 4], " | ".join([LONG[:90]] * 3), id="several of them"),
        pytest.param([FIRST], "", id="one that may be cut"),
        pytest.param([], "", id="none"),
    ],
)
def test_the_last_lines_of_a_kernels_log_are_told_however_long_they_are(
    monkeypatch: pytest.MonkeyPatch, lines: list[str], said: str
) -> None:
    def call(name: str, kind: int, buffer: Any, size: int) -> int:
        data = "".join(f"{each}\n" for each in lines).encode()[-size:]
        buffer[: len(data)] = data
        return len(data)

    monkeypatch.setattr(kernel, "call", call)
    assert harness.outcome_of(kernel.kernel_log, {}) == ("done", said)


GREEDY = make_attempt(
    id="greedy", group=Group.RESOURCES, expected=Verdict.CONTAINED, control=Control.OWN
)
OOM = {"reason": "OOMKilled", "exitCode": 137}


@pytest.mark.parametrize(
    ("pod", "agent", "around", "expected"),
    [
        pytest.param(make_pod(agent=OOM), (), {}, "contained", id="killed"),
        pytest.param(make_pod(reason="Evicted"), (), {}, "contained", id="evicted"),
        pytest.param(
            make_pod(agent={"exitCode": 0}), (line("refused", name="greedy"),), {}, "contained",
            id="refused inside",
        ),
        pytest.param(
            make_pod(agent={"reason": "Error", "exitCode": 1}), (), {}, "open", id="untyped end"
        ),
        pytest.param(
            make_pod(agent=OOM), (), {"beats": [98.0, 99.0, 106.0, 111.0]}, "open",
            id="the neighbour was silent",
        ),
        pytest.param(make_pod(agent=OOM), (), {"beats": []}, "unproven", id="no neighbour heard"),
    ],
)  # fmt: skip
def test_greed_is_contained_when_nobody_else_is_hurt(
    pod: Any, agent: Any, around: Any, expected: str
) -> None:
    heard = {"fenced-greedy": make_heard(*agent, pod=pod)}
    assert verdict(GREEDY, heard, **around)[0] == expected


def test_greed_that_hurts_the_node_is_open() -> None:
    sick = Check(name="the node is well", holds=False, evidence="DiskPressure")
    heard = {"fenced-greedy": make_heard(pod=make_pod(agent=OOM), node=sick)}
    assert verdict(GREEDY, heard) == (Verdict.OPEN, "the node is well: DiskPressure")


TRAP = make_attempt(
    group=Group.WORKSPACE, expected=Verdict.CONFINED, control=Control.COLLECTED, call="traps.links"
)
GOOD = {
    "kind": "trap", "id": "door", "members": 2, "kinds": ["0", "5"], "modes": ["0o644", "0o755"],
    "bad_names": 0, "words": [], "plain": True, "skipped": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "confined"),
        ({"kinds": ["0", "2"]}, "open"),
        ({"modes": ["0o6777"]}, "open"),
        ({"bad_names": 1}, "open"),
        ({"words": ["root:x:0:0"]}, "open"),
        ({"plain": False}, "open"),
        ({"id": "another"}, "unproven"),
    ],
)
def test_a_trap_is_confined_when_only_plain_files_are_collected(
    changes: Any, expected: str
) -> None:
    heard = {"fenced-traps": make_heard(line("done"), shim=(GOOD | changes,))}
    assert verdict(TRAP, heard)[0] == expected


SURVIVOR = make_attempt(
    group=Group.DEADLINE, expected=Verdict.CONTAINED, control=Control.OWN, call="survivors.deaf"
)
KILLED = {"kind": "killed", "closed": True, "took_s": 4.0, "alive": [], "seen": ["door"]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "contained"),
        ({"alive": ["door"]}, "open"),
        ({"closed": False}, "open"),
        ({"took_s": 14.0}, "open"),
        ({"seen": []}, "unproven"),
    ],
)
def test_a_survivor_is_one_that_still_writes_after_the_switch(changes: Any, expected: str) -> None:
    heard = {"fenced-deadline": make_heard(line("done"), shim=(KILLED | changes,))}
    assert verdict(SURVIVOR, heard)[0] == expected


def test_lines_that_an_agent_made_up_are_passed_over() -> None:
    attempt = make_attempt()
    noise = [{"id": "door", "outcome": "blocked"}, {"id": ["door"]}, {"outcome": "done"}]
    heard = {HOST: make_heard(*noise, line("refused")), CONTROL: make_heard(line("done"))}
    assert verdict(attempt, heard)[0] is Verdict.BLOCKED
