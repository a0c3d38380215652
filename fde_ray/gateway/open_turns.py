"""Turns that wait for their reply: looked at together, so that their clocks stand still in time.

Whoever answers a turn, in whatever process, says in its row what it waits for. Every replica that
was asked for a turn reads that and opens or closes the pause; those that look at the same turn come
to the same.
"""

from __future__ import annotations

import logging
from asyncio import Event
from dataclasses import dataclass

from fde_ray.model.clock import Clock
from fde_ray.model.errors import StoreError
from fde_ray.store.runs import OpenTurn, RunStore, woken

from .clocks import SessionClocks
from .pauses import doubtful_s, turn_wait

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
"""How long news of another process may go unseen. Those of this one wake us."""


@dataclass
class _Watched:
    turn_no: int
    supervised_at: float | None = None
    """When a lease on its run was last seen alive."""


class OpenTurns:
    def __init__(self, store: RunStore, clocks: SessionClocks, clock: Clock) -> None:
        self._store, self._clocks, self._clock = store, clocks, clock
        self._watched: dict[str, _Watched] = {}
        self._any = Event()

    async def begin(self, subject: str, turn_no: int) -> None:
        """A turn has just been posted here: from now on it is being served."""
        self._watch(subject, turn_no)
        await self._clocks.serve(subject, turn_request(turn_no))

    async def end(self, subject: str, turn_no: int) -> None:
        """The turn has its reply, or nobody waits for one any more."""
        watched = self._watched.get(subject)
        if watched is not None and watched.turn_no == turn_no:
            self._forget(subject)
        await self._clocks.end(subject, turn_request(turn_no))

    def knows(self, subject: str, turn_no: int) -> bool:
        watched = self._watched.get(subject)
        return watched is not None and watched.turn_no == turn_no

    async def recall(self, subject: str) -> None:
        """Look at the open turn of a session, which another replica may have been told of."""
        for turn in await self._store.open_turns([subject]):
            await self._settle(turn)

    async def doubtful_s(self, subject: str) -> float:
        """Return how long the session's turn has waited for a supervisor that may be dead.

        A wait that is beyond doubt is a pause when this returns.
        """
        doubt_s = 0.0
        for turn in await self._store.open_turns([subject]):
            await self._settle(turn)
            doubt_s += doubtful_s(turn, self._clock.now())
        return doubt_s

    async def watch(self) -> None:
        """Look after all open turns until cancelled; without any, nothing is read."""
        with self._store.changed.watch(("holds",)) as news:
            while True:
                await self._any.wait()
                await woken(news, LOOK_EVERY_S)
                try:
                    await self.look()
                except StoreError as error:
                    log.warning("turns_not_seen", extra={"reason": error.detail})

    async def look(self) -> None:
        """See to every open turn of this replica once."""
        asked = {subject: watched.turn_no for subject, watched in self._watched.items()}
        if not asked:
            return
        still = set()
        for turn in await self._store.open_turns(tuple(asked)):
            still.add((turn.subject, turn.turn_no))
            await self._settle(turn)
        for subject, turn_no in asked.items():
            if (subject, turn_no) not in still and self.knows(subject, turn_no):
                await self.end(subject, turn_no)
                self._store.changed.notify([("turn", subject)])

    async def _settle(self, turn: OpenTurn) -> None:
        """Let the clock stand or run, as the row says."""
        subject, request = turn.subject, turn_request(turn.turn_no)
        watched, now = self._watch(subject, turn.turn_no), self._clock.now()
        wait = turn_wait(turn, watched.supervised_at, now)
        if turn.lease_left_s is not None and turn.lease_left_s > 0:
            watched.supervised_at = now
        if wait is None:
            await self._clocks.serve(subject, request)
        else:
            await self._clocks.pin(subject, request, wait)

    def _watch(self, subject: str, turn_no: int) -> _Watched:
        watched = self._watched.get(subject)
        if watched is None or watched.turn_no != turn_no:
            watched = self._watched[subject] = _Watched(turn_no)
            self._any.set()
        return watched

    def _forget(self, subject: str) -> None:
        del self._watched[subject]
        if not self._watched:
            self._any.clear()


def turn_request(turn_no: int) -> str:
    """Return the name under which a turn counts among a session's requests."""
    return f"turn {turn_no}"
