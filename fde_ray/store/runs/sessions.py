"""What the plane does with a session: tokens, clock, exit, parts, commits, scores."""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam as b
from sqlalchemy import case, func, select

from fde_ray.model.clock import Clock
from fde_ray.model.errors import Superseded, shortened
from fde_ray.model.session import AgentExit, Commit, Part
from fde_ray.model.states import SolveEnd
from fde_ray.store.errors import Conflict, RowMissing

from . import schema
from .database import Database, Statement, Transaction, among, inserting, updating
from .inbox import post
from .pauses import CLOSE_PAUSE
from .rows import AttemptRow, Standing
from .statements import storable_text
from .supervision import ATTEMPTS, STANDINGS

_A, _P, _M = schema.attempts.c, schema.parts.c, schema.commits.c
_THIS = _A.subject == b("subject_")
_SESSION = Statement(ATTEMPTS.where(_THIS))
_STANDING = Statement(STANDINGS.where(_THIS))
# Read before the row is changed: another replica waits until that is done.
_TOKEN = Statement(select(_A.nonce, _A.serial, _A.state).where(_THIS).with_for_update())
_NEW_TOKEN = updating(schema.attempts, _THIS, columns=("nonce", "serial"))
_STARTED = Statement(select(_A.agent_started_at, _A.serial).where(_THIS).with_for_update())
_START = updating(schema.attempts, _THIS, columns=("agent_started_at",))
_START_FIRST = updating(schema.attempts, _THIS, columns=("agent_started_at", "nonce", "serial"))
_END = Statement(select(_A.solve_end, _A.exit, _A.state).where(_THIS).with_for_update())
_SET_END = updating(
    schema.attempts,
    _THIS,
    columns=("solve_end", "solve_ended_at", "detail"),
    exit=func.coalesce(_A.exit, b("exit_")),
    state=case((_A.state == "open", "collecting"), else_=_A.state),
)
_SET_EXIT = updating(schema.attempts, _THIS, columns=("exit",))
_PART = Statement(
    select(_P.sha256, _P.size).where(
        _P.subject == b("subject_"), _P.snapshot == b("snapshot_"), _P.seq == b("seq_")
    )
)
_ADD_PART = inserting(schema.parts, "subject", "snapshot", "seq", "sha256", "size")
_PARTS = Statement(
    select(_P.seq, _P.sha256, _P.size)
    .where(_P.subject == b("subject_"), _P.snapshot == b("snapshot_"))
    .order_by(_P.seq)
)
_STATE = Statement(select(_A.state).where(_THIS))
LOCK_SESSION = Statement(select(_A.state).where(_THIS).with_for_update())
_THIS_SNAPSHOT = (_M.subject == b("subject_")) & (_M.snapshot == b("snapshot_"))
_MANIFEST = Statement(select(_M.manifest).where(_THIS_SNAPSHOT))
_SET_MANIFEST = updating(schema.commits, _THIS_SNAPSHOT, columns=("manifest", "at"))
_ADD_MANIFEST = inserting(schema.commits, "subject", "snapshot", "manifest", "at")
_COMMIT = updating(
    schema.attempts, _THIS, among(_A.state, "open", "collecting"), columns=("commit", "state")
)
_SCORE = Statement(select(_A.first_score_sha).where(_THIS).with_for_update())
_SET_SCORE = updating(schema.attempts, _THIS, columns=("first_score_sha",))


class Sessions:
    _db: Database
    _clock: Clock

    async def session(self, subject: str) -> AttemptRow:
        """RowMissing when there is no such session."""
        return await self._db.read(lambda t: session_row(t, subject))

    async def standing(self, subject: str) -> Standing:
        """RowMissing when there is no such session."""
        row = await self._db.read(lambda t: t.one(_STANDING, subject_=subject))
        return Standing.of(_found(subject, row))

    async def token_serial(self, subject: str, nonce: str, held: int | None = None) -> int:
        """Return the serial for a shim's nonce: the same for the same nonce, else the next one.

        The greatest serial is the good one. held: the one that this shim has; None = it is new
        here. A rebuilt session, which knows of no shim, takes the word of the first one for it.
        Superseded when the session is closed, or another shim came after this one.
        """
        nonce = storable_text(nonce)

        def change(t: Transaction) -> int:
            known, serial, state = _found(subject, t.one(_TOKEN, subject_=subject))
            if state == "closed":
                raise Superseded(f"session {subject} is closed")
            if known == nonce:
                return int(serial)
            if held is not None and known is not None:
                raise Superseded(f"another shim has taken over session {subject}")
            number = int(serial) + 1 if held is None else held
            t.run(_NEW_TOKEN, subject_=subject, nonce=nonce, serial=number)
            return number

        return await self._db.write(change)

    async def mark_agent_started(
        self, subject: str, at: float | None = None, nonce: str | None = None
    ) -> float:
        """Start the agent's clock; the first call wins. Returns its start.

        nonce: of the shim that starts it, whose tokens get the first serial.
        """
        now = self._clock.now() if at is None else at

        def change(t: Transaction) -> float:
            started, serial = _found(subject, t.one(_STARTED, subject_=subject))
            if started is not None:
                return float(started)
            if nonce is None or serial > 0:
                t.run(_START, subject_=subject, agent_started_at=now)
            else:
                t.run(_START_FIRST, subject_=subject, agent_started_at=now, nonce=nonce, serial=1)
            post(t, subject, "started", now)
            return now

        return await self._db.write(change)

    async def end_solving(
        self, subject: str, end: SolveEnd, at: float | None = None, detail: str = ""
    ) -> SolveEnd:
        """Record what ended the solving; the first event wins. Returns the one that counts."""
        now = self._clock.now() if at is None else at
        return await self._db.write(lambda t: end_session(t, subject, end, now, detail=detail))

    async def record_exit(
        self, subject: str, notice: AgentExit, at: float | None = None
    ) -> SolveEnd:
        """Keep the agent's own end as a claim; it counts only if nothing ended solving before."""
        now, claim = self._clock.now() if at is None else at, notice.model_dump_json()
        end, detail = SolveEnd(notice.kind), shortened(notice.detail)
        return await self._db.write(
            lambda t: end_session(t, subject, end, now, detail=detail, claim=claim)
        )

    async def record_part(self, subject: str, snapshot: str, part: Part) -> Part:
        """Note a stored part unless one with its number is there; return the one that is there."""
        now = self._clock.now()

        def change(t: Transaction) -> Part:
            known = t.one(_PART, subject_=subject, snapshot_=snapshot, seq_=part.seq)
            if known is not None:
                return Part(seq=part.seq, sha256=known[0], size=known[1])
            t.run(
                _ADD_PART,
                subject=subject,
                snapshot=snapshot,
                seq=part.seq,
                sha256=part.sha256,
                size=part.size,
            )
            post(t, subject, "part", now)
            return part

        return await self._db.write(change)

    async def parts(self, subject: str, snapshot: str) -> tuple[Part, ...]:
        rows = await self._db.read(lambda t: t.all(_PARTS, subject_=subject, snapshot_=snapshot))
        return tuple(Part(seq=seq, sha256=sha256, size=size) for seq, sha256, size in rows)

    async def record_commit(self, subject: str, commit: Commit, at: float | None = None) -> Commit:
        """Keep the manifest of a snapshot; return the one that counts for it: the first.

        A final one commits the session; a known one that is not may become final unchanged.
        Conflict when it names a part that was never stored;
        Superseded when the session is committed or closed already.
        """
        now, text = self._clock.now() if at is None else at, commit.model_dump_json()

        def change(t: Transaction) -> Commit:
            t.hold(LOCK_SESSION, subject_=subject)
            known = t.one(_MANIFEST, subject_=subject, snapshot_=commit.snapshot)
            if known is not None and known[0] == text:
                return commit
            if known is not None:
                first = Commit.model_validate_json(known[0])
                if first.final or first.evolve(final=True) != commit:
                    return first
            (state,) = _found(subject, t.one(_STATE, subject_=subject))
            if state not in {"open", "collecting"}:
                raise Superseded(f"session {subject} is {state}")
            _check_parts(t, subject, commit)
            if known is None:
                t.run(
                    _ADD_MANIFEST, subject=subject, snapshot=commit.snapshot, manifest=text, at=now
                )
            else:
                t.run(
                    _SET_MANIFEST,
                    subject_=subject,
                    snapshot_=commit.snapshot,
                    manifest=text,
                    at=now,
                )
            t.run(
                _COMMIT,
                subject_=subject,
                commit=text,
                state="committed" if commit.final else state,
            )
            post(t, subject, "commit" if commit.final else "snapshot", now)
            return commit

        return await self._db.write(change)

    async def set_first_score(self, subject: str, output_sha256: str) -> bool:
        """Keep the hash of the first output that was scored; False = there was one before."""
        now = self._clock.now()

        def change(t: Transaction) -> bool:
            (known,) = _found(subject, t.one(_SCORE, subject_=subject))
            if known is not None:
                return False
            t.run(_SET_SCORE, subject_=subject, first_score_sha=output_sha256)
            post(t, subject, "score", now)
            return True

        return await self._db.write(change)


def session_row(t: Transaction, subject: str) -> AttemptRow:
    return AttemptRow.of(_found(subject, t.one(_SESSION, subject_=subject)))


def end_session(
    t: Transaction,
    subject: str,
    end: SolveEnd,
    now: float,
    *,
    detail: str = "",
    claim: str | None = None,
) -> SolveEnd:
    """Set the solve end unless there is one, keep the claim, and return the end that counts.

    The agent's clock stops with it: a pause that is open ends.
    """
    known, exit_, state = _found(subject, t.one(_END, subject_=subject))
    if known is None and state != "closed":
        t.run(
            _SET_END,
            subject_=subject,
            solve_end=end.value,
            solve_ended_at=now,
            detail=detail or None,
            exit_=claim,
        )
        t.run(CLOSE_PAUSE, subject_=subject, closed_at=now)
        post(t, subject, "exit", now)
        return end
    if claim is not None and exit_ is None:
        t.run(_SET_EXIT, subject_=subject, exit=claim)
    return end if known is None else SolveEnd(known)


def _check_parts(t: Transaction, subject: str, commit: Commit) -> None:
    stored = set(t.all(_PARTS, subject_=subject, snapshot_=commit.snapshot))
    for part in commit.parts:
        if (part.seq, part.sha256, part.size) not in stored:
            raise Conflict(f"part {part.seq} of {commit.snapshot} was never stored")


def _found(subject: str, row: Any) -> Any:
    if row is None:
        raise RowMissing(f"there is no session {subject[:128]}")
    return row
