"""Turns of agents: recorded once, answered by the engine, waited for here."""

from __future__ import annotations

import asyncio

from fde_ray.model.base import digest
from fde_ray.model.clock import Clock
from fde_ray.model.dialogue import AgentTurn
from fde_ray.model.errors import Refusal
from fde_ray.model.failures import Fault
from fde_ray.model.states import Channel, SolveEnd
from fde_ray.store.errors import Conflict, RowMissing
from fde_ray.store.runs import RunStore, TurnRow, woken

from .clocks import SessionClocks
from .messages import MAX_ENTRIES, MAX_TURN_TEXT_BYTES, TurnReply, TurnRequest
from .open_turns import OpenTurns
from .ports import Session

LONGEST_WAIT_S = 60.0
LEAVING = ("leaving",)
PENDING = TurnReply(status="pending")


class Turns:
    def __init__(
        self, store: RunStore, open_turns: OpenTurns, clocks: SessionClocks, clock: Clock
    ) -> None:
        self._store, self._clocks, self._clock = store, clocks, clock
        self._open = open_turns
        self._is_leaving = False

    def leave(self) -> None:
        """Answer those who wait with `pending`, now and later: the process is about to end."""
        self._is_leaving = True
        self._store.changed.notify([LEAVING])

    async def post(self, session: Session, request: TurnRequest) -> TurnReply:
        """Record the turn and return the reply if it is there already."""
        check_size(request)
        subject, body = session.subject, digest(request)
        known = await self._kept(session, request, body)
        if known.new:
            # From here to its reply the turn is being served: latency of ours is charged.
            await self._open.begin(subject, request.turn_no)
        if known.request_hash != body:
            reason = f"turn {request.turn_no} is known with another body"
            raise _conflict("turn_differs", reason)
        return await self._reply(session, known) or PENDING

    async def wait(self, session: Session, turn_no: int, wait_s: float) -> TurnReply:
        """Return the reply as soon as the engine has written it; `pending` after `wait_s`.

        A reply of another process is seen by `OpenTurns.watch`.
        """
        subject, loop = session.subject, asyncio.get_running_loop()
        deadline = loop.time() + min(max(wait_s, 0.0), LONGEST_WAIT_S)
        with self._store.changed.watch(("turn", subject), LEAVING) as changed:
            while True:
                known = await self._known(subject, turn_no)
                if known is None:
                    raise Refusal(404, Fault.AGENT, "no such turn", code="unknown_turn")
                reply = await self._reply(session, known)
                left = 0.0 if self._is_leaving else deadline - loop.time()
                if reply is not None or left <= 0:
                    return reply or PENDING
                await woken(changed, left)

    async def _kept(self, session: Session, request: TurnRequest, body: str) -> TurnRow:
        """Record the turn; one that is known is returned as it is, also after the end."""
        subject, turn_no = session.subject, request.turn_no
        try:
            check_new(session, request)
            await self._check_order(subject, turn_no)
        except Refusal:
            if (known := await self._known(subject, turn_no)) is None:
                raise
            return known
        try:
            return await self._store.record_turn(subject, self._recorded(request), body)
        except Conflict as error:
            raise _conflict("turn_differs", str(error)) from error

    async def _known(self, subject: str, turn_no: int) -> TurnRow | None:
        try:
            return await self._store.turn(subject, turn_no)
        except RowMissing:
            return None

    async def _check_order(self, subject: str, turn_no: int) -> None:
        if turn_no == 1:
            return
        before = await self._known(subject, turn_no - 1)
        if before is None:
            raise _conflict("turn_skipped", f"turn {turn_no - 1} was never posted")
        if before.reply is None:
            raise _conflict("turn_open", f"turn {turn_no - 1} has no reply yet")

    async def _reply(self, session: Session, known: TurnRow) -> TurnReply | None:
        if session.inputs.role == "extract":
            return await self._extraction_ends(session)
        if known.reply is None:
            if not self._open.knows(session.subject, known.turn_no):
                await self._open.recall(session.subject)
            return None
        reply = TurnReply.model_validate(known.reply)
        await self._open.end(session.subject, known.turn_no)
        if reply.solve_end is not None:
            self._clocks.close(session.subject)
        return reply

    async def _extraction_ends(self, session: Session) -> TurnReply:
        """An extractor asks nobody: its first stop is its end."""
        if session.solve_end is None:
            await self._store.end_solving(session.subject, SolveEnd.SUBMITTED)
            self._clocks.close(session.subject)
        return TurnReply(status="done", action="finish", solve_end=SolveEnd.SUBMITTED)

    def _recorded(self, request: TurnRequest) -> AgentTurn:
        return AgentTurn(
            seq=1,  # the store numbers it
            at=self._clock.now(),
            turn_no=request.turn_no,
            channel=request.channel,
            text=request.text,
            entries=request.entries,
            has_deliverable=request.has_deliverable,
        )


def check_size(request: TurnRequest) -> None:
    """Refuse a turn that is larger than any honest one."""
    if len(request.text.encode("utf-8", "replace")) > MAX_TURN_TEXT_BYTES:
        raise _too_large(f"the text of a turn is at most {MAX_TURN_TEXT_BYTES} bytes")
    if len(request.entries) > MAX_ENTRIES:
        raise _too_large(f"a turn has at most {MAX_ENTRIES} entries")
    size = sum(len(e.question) + len(e.header) + sum(map(len, e.options)) for e in request.entries)
    if size > MAX_TURN_TEXT_BYTES:
        raise _too_large(f"the entries of a turn are at most {MAX_TURN_TEXT_BYTES} characters")


def check_new(session: Session, request: TurnRequest) -> None:
    """Refuse a forged turn: before the start, after the end, by a channel that is not there."""
    if not session.is_solving:
        end = session.solve_end.value if session.solve_end else "over"
        raise Refusal(403, Fault.AGENT, f"solving has ended ({end})", code="solve_ended")
    if session.started_at is None:
        raise _conflict("not_started", "the agent has not been started")
    if request.channel not in (Channel.TEXT, session.inputs.channel):
        raise _conflict("wrong_channel", f"this run asks by {session.inputs.channel.value}")
    if request.entries and request.channel is Channel.TEXT:
        raise _conflict("wrong_channel", "a text turn has no entries")


def _conflict(code: str, reason: str) -> Refusal:
    return Refusal(409, Fault.AGENT, reason, code=code)


def _too_large(reason: str) -> Refusal:
    return Refusal(413, Fault.AGENT, reason, code="too_large")
