"""The pause rule on a virtual clock: paused iff one is held and none is served."""

from __future__ import annotations

import pytest

from fde_ray.gateway.pauses import (
    Activity,
    PauseStep,
    clock_totals,
    clock_verdict,
    next_pause,
    pause_cause,
)
from fde_ray.model.result import Pause
from fde_ray.model.states import PauseCause

P, O, C = PauseCause.PROVIDER, PauseCause.OUTAGE, PauseCause.CUSTOMER_DOWN  # noqa: E741


def test_the_rule_reads_activity_alone() -> None:
    idle = Activity()
    assert pause_cause(idle) is None
    assert pause_cause(idle.served("a")) is None
    assert pause_cause(idle.holding("a", P)) is P
    assert pause_cause(idle.holding("a", P).served("b")) is None
    assert pause_cause(idle.holding("a", P).served("b").done("b")) is P
    assert pause_cause(idle.holding("a", P).served("a")) is None
    assert pause_cause(idle.holding("a", P).done("a")) is None
    assert pause_cause(idle.holding("a", P).holding("b", O)) is P


def test_a_pinned_request_stays_held_until_we_let_go() -> None:
    pinned = Activity().served("turn 1").pinning("turn 1", C)
    assert pause_cause(pinned) is C
    assert pause_cause(pinned.served("turn 1")) is C
    assert pause_cause(pinned.confirmed((), C)) is C
    assert pinned.unpinned("turn 1").serving == ("turn 1",)
    assert pause_cause(pinned.done("turn 1")) is None
    assert Activity().unpinned("turn 1") == Activity()


def test_a_heartbeat_lets_go_of_what_the_shim_no_longer_holds() -> None:
    held = Activity().holding("a", P).holding("b", P)
    assert set(held.confirmed(["b"], P).held) == {"b"}
    assert held.confirmed([], P).held == {}


def test_a_heartbeat_opens_no_pause_and_keeps_an_open_one_after_a_restart() -> None:
    assert Activity().confirmed(["x", "y"], None) == Activity()
    assert Activity().confirmed(["x"], P).held == {"x": P}
    assert Activity().served("x").confirmed(["x"], P).held == {}


@pytest.mark.parametrize(
    ("open_cause", "activity", "step"),
    [
        (None, Activity(), None),
        (None, Activity().holding("a", P), PauseStep(False, P)),
        (P, Activity().holding("a", P), None),
        (P, Activity(), PauseStep(True, None)),
        (P, Activity().holding("a", P).served("b"), PauseStep(True, None)),
        (P, Activity().holding("a", O), PauseStep(True, O)),
        (P, Activity().holding("a", O).holding("b", P), None),
    ],
)
def test_a_step_is_written_only_when_something_changes(
    open_cause: PauseCause | None, activity: Activity, step: PauseStep | None
) -> None:
    assert next_pause(open_cause, activity) == step


def pause(opened: float, closed: float | None, cause: PauseCause = P) -> Pause:
    return Pause(cause=cause, opened_at=opened, closed_at=closed)


@pytest.mark.parametrize(
    ("pauses", "ended", "charged", "paused"),
    [
        ([], None, 100, 0),
        ([pause(110, 130)], None, 80, 20),
        ([pause(110, None)], None, 10, 90),
        ([pause(110, None)], 150, 10, 40),
        ([pause(50, 120)], None, 80, 20),
        ([pause(190, 300)], None, 90, 10),
        ([pause(110, 150), pause(120, 130)], None, 60, 40),
        ([pause(120, 160), pause(110, 130)], None, 50, 50),
        ([pause(10, 20)], None, 100, 0),
        ([pause(300, None)], None, 100, 0),
        ([pause(160, 170)], 150, 50, 0),
    ],
)
def test_rule_05_charged_time_is_wall_time_minus_the_union_of_pauses(
    pauses: list[Pause], ended: float | None, charged: float, paused: float
) -> None:
    totals = clock_totals(100, ended, pauses, 200)
    assert (totals.charged_s, totals.paused_s) == (charged, paused)


def test_rule_05_an_overlap_counts_for_the_cause_that_came_first() -> None:
    totals = clock_totals(0, None, [pause(10, 30, O), pause(20, 50, P)], 100)
    assert totals.by_cause == {O: 20, P: 20}


def test_nothing_is_charged_before_the_start() -> None:
    assert clock_totals(None, None, [pause(1, None)], 100)[:2] == (0, 0)


@pytest.mark.parametrize(
    ("charged", "paused", "verdict"),
    [(59.9, 60, None), (60, 0, "time_limit"), (10, 60.1, "pause_cap"), (60, 61, "time_limit")],
)
def test_the_clock_ends_a_run_by_time_or_by_the_pause_cap(
    charged: float, paused: float, verdict: str | None
) -> None:
    totals = clock_totals(0, None, [pause(0, paused)], charged + paused)
    assert clock_verdict(totals, time_s=60, pause_cap_s=60) == verdict
