"""The dialogue log of a session, as the plane saw it, and the replies that the agent waits for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import bindparam as b
from sqlalchemy import exists, func, select

from fde_ray.model.base import sha256_hex
from fde_ray.model.clock import Clock
from fde_ray.model.dialogue import DIALOGUE_EVENT, AgentTurn, DialogueEvent, Replied
from fde_ray.model.errors import Superseded
from fde_ray.model.states import PauseCause
from fde_ray.store.errors import Conflict, RowMissing

from . import schema
from .database import Database, Statement, Transaction, inserting, updating
from .inbox import post, run_of
from .leases import TTL, check_epoch, given_time, lease_time
from .rows import Epoch, OpenTurn, TurnRow
from .sessions import LOCK_SESSION, end_session
from .sweeps import LOCAL

_D, _T = schema.rounds.c, schema.turns.c
_LAST = Statement(select(func.max(_D.seq)).where(_D.subject == b("subject_")))
_ADD_EVENT = inserting(schema.rounds, "subject", "seq", "turn_no", "event")
_EVENT = Statement(select(_D.event).where(_D.subject == b("subject_"), _D.seq == b("seq_")))
_EVENTS = Statement(select(_D.seq, _D.event).where(_D.subject == b("subject_")).order_by(_D.seq))
_LATEST = Statement(
    select(_T.turn_no, _T.reply.is_not(None))
    .where(_T.subject == b("subject_"))
    .order_by(_T.turn_no.desc())
    .limit(1)
)
_TURN = Statement(
    select(_T.turn_no, _T.request_hash, _T.reply).where(
        _T.subject == b("subject_"), _T.turn_no == b("turn_no_")
    )
)
_ADD_TURN = inserting(schema.turns, "subject", "turn_no", "request_hash", "at")
_REPLY = updating(
    schema.turns,
    _T.subject == b("subject_"),
    _T.turn_no == b("turn_no_"),
    _T.reply.is_(None),
    columns=("reply",),
)
_ANSWERED = Statement(
    select(func.count())
    .select_from(schema.turns.join(schema.attempts, schema.attempts.c.subject == _T.subject))
    .where(
        _T.reply.like('%"action": "answer"%'),
        exists().where(
            schema.wants.c.run_id == schema.attempts.c.run_id,
            schema.wants.c.tenant == b("tenant_"),
            schema.wants.c.sweep == b("name_"),
        ),
    )
)
_PENDING = Statement(
    select(_T.subject, _T.turn_no).where(_T.reply.is_(None)).order_by(_T.at, _T.subject)
)
_HOLD = updating(
    schema.turns,
    _T.subject == b("subject_"),
    _T.turn_no == b("turn_no_"),
    _T.reply.is_(None),
    columns=("held_cause", "held_at"),
)
_LET_GO = updating(
    schema.turns,
    _T.subject == b("subject_"),
    _T.turn_no == b("turn_no_"),
    _T.held_cause.is_not(None),
    columns=("held_cause", "held_at"),
)
OPEN_BATCH = 100
_A, _R, _S = schema.attempts.c, schema.runs.c, schema.shards.c
_OPEN = Statement(
    select(_T.subject, _T.turn_no, _T.at, _T.held_cause, _T.held_at, _S.owner, _S.since)
    .add_columns(_S.expires_at)
    .select_from(
        schema.turns.join(schema.attempts, _A.subject == _T.subject)
        .join(schema.runs, _R.run_id == _A.run_id)
        .join(schema.shards, _S.shard == _R.shard)
    )
    .where(
        _T.subject.in_([b(f"subject_{place}") for place in range(OPEN_BATCH)]),
        _T.reply.is_(None),
        _A.state == "open",
    )
)


class Dialogues:
    _db: Database
    _clock: Clock

    async def record_turn(
        self, subject: str, turn: AgentTurn, request_hash: str | None = None
    ) -> TurnRow:
        """Append a turn of the agent and tell the supervisor; a repeat returns what is known.

        `seq` of the turn is ours to give and ignored. request_hash: None = of the turn's own
        fields. Conflict when the number is known with another hash.
        """
        now, text = self._clock.now(), turn.model_dump_json()
        request = request_hash or sha256_hex(turn.model_dump_json(exclude={"seq", "at"}))

        def change(t: Transaction) -> TurnRow:
            t.hold(LOCK_SESSION, subject_=subject)
            known = t.one(_TURN, subject_=subject, turn_no_=turn.turn_no)
            if known is not None:
                if known[1] != request:
                    raise Conflict(f"turn {turn.turn_no} was posted before with another body")
                return _turn_row(known, new=False)
            seq = (t.one(_LAST, subject_=subject)[0] or 0) + 1
            t.run(_ADD_EVENT, subject=subject, seq=seq, turn_no=turn.turn_no, event=text)
            t.run(_ADD_TURN, subject=subject, turn_no=turn.turn_no, request_hash=request, at=now)
            post(t, subject, "turn", now)
            return TurnRow(turn.turn_no, request, None, True)

        return await self._db.write(change)

    async def append_event(
        self,
        subject: str,
        event: DialogueEvent,
        *,
        epoch: Epoch | None = None,
        reply: dict[str, Any] | None = None,
    ) -> bool:
        """Append the event whose `seq` follows the last one; False = the same one is there.

        Superseded when another event has this seq, or `epoch` no longer holds the run. A `Replied`
        event also answers its turn (with `reply`, else its own fields) and, when it says so, ends
        the solving.
        """
        now, text = self._clock.now(), event.model_dump_json()

        def change(t: Transaction) -> bool:
            if epoch is not None:
                check_epoch(t, run_of(subject), epoch)
            t.hold(LOCK_SESSION, subject_=subject)
            last = t.one(_LAST, subject_=subject)[0] or 0
            if event.seq != last + 1:
                return _known(t, subject, event.seq, text)
            t.run(_ADD_EVENT, subject=subject, seq=event.seq, turn_no=event.turn_no, event=text)
            if isinstance(event, Replied):
                _answer(t, subject, event.turn_no, reply or turn_reply(event))
                if event.solve_end is not None:
                    end_session(t, subject, event.solve_end, now)
            t.wake(("dialogue", subject))
            return True

        return await self._db.write(change)

    async def dialogue(self, subject: str) -> list[DialogueEvent]:
        return await self._db.read(lambda t: events_of(t, subject))

    async def set_reply(self, subject: str, turn_no: int, reply: dict[str, Any]) -> bool:
        """Answer a turn and wake whoever waits for it; the first reply wins."""
        return await self._db.write(lambda t: _answer(t, subject, turn_no, reply))

    async def turn(self, subject: str, turn_no: int) -> TurnRow:
        """RowMissing when the turn was never posted."""
        row = await self._db.read(lambda t: t.one(_TURN, subject_=subject, turn_no_=turn_no))
        if row is None:
            raise RowMissing(f"session {subject[:128]} has no turn {turn_no}")
        return _turn_row(row, new=False)

    async def reply(self, subject: str, turn_no: int) -> dict[str, Any] | None:
        """Return the reply to a turn, None = pending."""
        return (await self.turn(subject, turn_no)).reply

    async def hold_turn(
        self, subject: str, turn_no: int, cause: PauseCause | None, since: float | None = None
    ) -> None:
        """Mark that a turn waits for something of ours, since then; None = it is worked on again.

        since: None = now. A turn that has its reply stays as it is.
        """
        if cause is None:
            statement, at, name = _LET_GO, None, None
        else:
            statement, at, name = _HOLD, self._clock.now() if since is None else since, cause.value

        def change(t: Transaction) -> None:
            if t.run(statement, subject_=subject, turn_no_=turn_no, held_cause=name, held_at=at):
                t.wake(("holds",))

        await self._db.write(change)

    async def open_turns(self, subjects: Sequence[str]) -> list[OpenTurn]:
        """Return the turns of these sessions that wait for a reply while their agents are at work.

        One query for each hundred sessions.
        """
        at = given_time(self._clock)

        def query(t: Transaction) -> list[OpenTurn]:
            now = lease_time(t, at)
            batches = _batches(subjects)
            return [_open_turn(row, now) for one in batches for row in t.all(_OPEN, **one)]

        return await self._db.read(query)

    async def rounds_of_sweep(self, name: str, *, tenant: str = LOCAL) -> int:
        """Count the rounds that the customer has answered, of every run that the sweep wants."""
        row = await self._db.read(lambda t: t.one(_ANSWERED, tenant_=tenant, name_=name))
        return int(row[0])

    async def pending_turns(self) -> list[tuple[str, int]]:
        """Return (subject, turn_no) of every turn that waits for a reply."""
        return await self._db.read(lambda t: t.all(_PENDING))


def events_of(t: Transaction, subject: str) -> list[DialogueEvent]:
    return [_event(row) for row in t.all(_EVENTS, subject_=subject)]


def turn_reply(event: Replied) -> dict[str, Any]:
    """Return the body that the plane answers a turn with."""
    return {
        "status": "done",
        "action": event.action,
        "message": event.message,
        "answers": list(event.answers),
        "solve_end": None if event.solve_end is None else event.solve_end.value,
    }


def _answer(t: Transaction, subject: str, turn_no: int, reply: dict[str, Any]) -> bool:
    changed = t.run(_REPLY, subject_=subject, turn_no_=turn_no, reply=json.dumps(reply))
    t.wake(("turn", subject))
    return changed == 1


def _known(t: Transaction, subject: str, seq: int, text: str) -> bool:
    row = t.one(_EVENT, subject_=subject, seq_=seq)
    if row is not None and row[0] == text:
        return False
    raise Superseded(f"event {seq} of {subject} is not the next one")


def _event(row: Any) -> DialogueEvent:
    """The column is the number; a turn was numbered after it was spelled."""
    return DIALOGUE_EVENT.validate_python(json.loads(row[1]) | {"seq": row[0]})


def _batches(subjects: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the parameters of `_OPEN`, filled up with a name that no session has."""
    for first in range(0, len(subjects), OPEN_BATCH):
        some = subjects[first : first + OPEN_BATCH]
        names = [*some, *[""] * (OPEN_BATCH - len(some))]
        yield {f"subject_{place}": name for place, name in enumerate(names)}


def _open_turn(row: Any, now: float) -> OpenTurn:
    subject, turn_no, posted_at, held, held_at, owner, since, expires_at = row
    left = heard = None
    if owner is not None and expires_at is not None:
        left = expires_at - now
        heard = min(TTL.total_seconds() - left, now - since)
    cause = None if held is None else PauseCause(held)
    return OpenTurn(subject, turn_no, posted_at, cause, held_at, left, heard)


def _turn_row(row: Any, *, new: bool) -> TurnRow:
    return TurnRow(row[0], row[1], None if row[2] is None else json.loads(row[2]), new)
