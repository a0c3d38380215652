"""The agent's clock: when it pauses, and what was charged (architecture §3). Pure.

A run is paused at an instant iff a request of it is held for a listed cause and none of its
requests is being served. `Activity` says which requests are which; `next_pause` compares it with
the pause that is open; `clock_totals` adds up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from fde_ray.metering.places import Wait
from fde_ray.model.base import Record
from fde_ray.model.result import Pause
from fde_ray.model.states import PauseCause
from fde_ray.store.runs import OpenTurn

UNHEARD_S = 20.0
"""A lease is renewed each 10 s; the holder of one that missed two renewals may be dead."""


class Activity(Record):
    """The requests of one session, by id. An id stands in at most one of the three."""

    serving: tuple[str, ...] = ()
    held: dict[str, PauseCause] = {}
    """Refused for a listed cause; the shim holds them and asks again."""
    pinned: dict[str, PauseCause] = {}
    """Held on our side until we let go: a turn whose customer is down, a call without a place."""

    def served(self, request: str) -> Activity:
        """`request` is being worked on, unless it is pinned."""
        if request in self.pinned:
            return self
        return self.evolve(
            serving=(*self._others(request), request), held=_without(self.held, request)
        )

    def holding(self, request: str, cause: PauseCause) -> Activity:
        return self.evolve(serving=self._others(request), held={**self.held, request: cause})

    def pinning(self, request: str, cause: PauseCause) -> Activity:
        return self.evolve(serving=self._others(request), pinned={**self.pinned, request: cause})

    def unpinned(self, request: str) -> Activity:
        """Let go: the request is being worked on again."""
        if request not in self.pinned:
            return self
        return self.evolve(pinned=_without(self.pinned, request)).served(request)

    def done(self, request: str) -> Activity:
        return Activity(
            serving=self._others(request),
            held=_without(self.held, request),
            pinned=_without(self.pinned, request),
        )

    def confirmed(self, reported: Iterable[str], open_cause: PauseCause | None) -> Activity:
        """Return the activity after the shim said which requests it still holds.

        What it no longer holds was given up by its caller. An id that we do not know counts only
        while a pause is open (a plane that started anew has forgotten who it refused): a shim can
        lengthen no pause that the plane did not open.
        """
        known = set(reported)
        held = {k: v for k, v in self.held.items() if k in known}
        if open_cause is not None:
            for request in sorted(known):
                if request not in held and request not in self.serving:
                    held[request] = open_cause
        return self.evolve(held=held)

    @property
    def waiting(self) -> dict[str, PauseCause]:
        return {**self.pinned, **self.held}

    def _others(self, request: str) -> tuple[str, ...]:
        return tuple(one for one in self.serving if one != request)


def _without(causes: Mapping[str, PauseCause], request: str) -> dict[str, PauseCause]:
    return {k: v for k, v in causes.items() if k != request}


def pause_cause(activity: Activity) -> PauseCause | None:
    """Return why the clock stands still; None = it runs. The longest held request names it."""
    if activity.serving or not activity.waiting:
        return None
    return next(iter(activity.waiting.values()))


def is_for_another(open_cause: PauseCause | None, activity: Activity) -> bool:
    """Whether only another replica can know if the open pause is over: a call waits there."""
    at_work = activity.serving or activity.waiting
    return open_cause in (PauseCause.RATE_LIMIT, PauseCause.BUDGET_WAIT) and not at_work


class PauseStep(NamedTuple):
    """What to write: close the open pause, then open one for `opens`."""

    closes: bool
    opens: PauseCause | None


def next_pause(open_cause: PauseCause | None, activity: Activity) -> PauseStep | None:
    """Return the step from the recorded pause to what `activity` asks for; None = nothing."""
    wanted = pause_cause(activity)
    if wanted == open_cause or (wanted is not None and open_cause in activity.waiting.values()):
        return None
    return PauseStep(closes=open_cause is not None, opens=wanted)


def turn_wait(turn: OpenTurn, supervised_at: float | None, now: float) -> Wait | None:
    """Return what an open turn waits for, and since when; None = it is being served.

    supervised_at: when its run was last seen under a living lease; None = never. Nobody has worked
    on it since a lease that ran out was last renewed. No wait begins before the turn was posted.
    """
    left = turn.lease_left_s
    if left is not None and left > 0:
        if turn.held is None:
            return None
        return Wait(turn.held, max(turn.posted_at, turn.held_at or now))
    since = supervised_at if turn.lease_heard_s is None else now - turn.lease_heard_s
    return Wait(PauseCause.NO_SUPERVISOR, max(turn.posted_at, since or 0.0))


def doubtful_s(turn: OpenTurn, now: float) -> float:
    """Return how much of the time up to now is a pause, should the lease turn out to be dead."""
    left, heard = turn.lease_left_s, turn.lease_heard_s
    if turn.held is not None or left is None or left <= 0 or heard is None or heard < UNHEARD_S:
        return 0.0
    return max(0.0, min(heard, now - turn.posted_at))


class ClockTotals(NamedTuple):
    charged_s: float
    paused_s: float
    by_cause: Mapping[PauseCause, float]


def clock_totals(
    started_at: float | None, ended_at: float | None, pauses: Iterable[Pause], now: float
) -> ClockTotals:
    """Return charged and paused seconds since the agent's start.

    Overlapping pauses count once; `by_cause` gives an overlap to the pause that opened first.
    """
    if started_at is None:
        return ClockTotals(0.0, 0.0, {})
    end = max(started_at, now if ended_at is None else ended_at)
    by_cause: dict[PauseCause, float] = {}
    covered = started_at
    for pause in sorted(pauses, key=lambda p: p.opened_at):
        opened = max(pause.opened_at, covered)
        closed = min(end if pause.closed_at is None else pause.closed_at, end)
        if closed > opened:
            by_cause[pause.cause] = by_cause.get(pause.cause, 0.0) + closed - opened
            covered = closed
    paused = sum(by_cause.values())
    return ClockTotals(end - started_at - paused, paused, by_cause)


def clock_verdict(
    totals: ClockTotals, *, time_s: float, pause_cap_s: float
) -> Literal["time_limit", "pause_cap"] | None:
    """Return which limit of the clock is reached; None = neither."""
    if totals.charged_s >= time_s:
        return "time_limit"
    return "pause_cap" if totals.paused_s > pause_cap_s else None
