"""What the plane does with a session: tokens, clock, exit, parts, commits, scores."""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam as b
from sqlalchemy import case, func, select

from fde_ray.model.clock import Clock
from fde_ray.model.errors import Superseded
from fde_ray.model.session import AgentExit, Commit, Part
from fde_ray.model.states import SolveEnd
from fde_ray.store.errors import Conflict, RowMissing

from . import schema
from .database import Database, Statement, Transaction, among, keeping, updating
from .inbox import post
from .rows import AttemptRow
from .supervision import ATTEMPTS

_A, _P = schema.attempts.c, schema.parts.c
_THIS = _A.subject == b("subject_")
_SESSION = Statement(ATTEMPTS.where(_THIS))
_TOKEN = Statement(select(_A.nonce, _A.serial, _A.state).where(_THIS))
_NEW_TOKEN = updating(schema.attempts, _THIS, columns=("nonce", "serial"))
_STARTED = Statement(select(_A.agent_started_at).where(_THIS))
_START = updating(schema.attempts, _THIS, columns=("agent_started_at",))
_END = Statement(select(_A.solve_end, _A.exit, _A.state).where(_THIS))
_SET_END = updating(
    schema.attempts,
    _THIS,
    columns=("solve_end", "solve_ended_at"),
    exit=func.coalesce(_A.exit, b("exit_")),
    state=case((_A.state == "open", "collecting"), else_=_A.state),
)
_SET_EXIT = updating(schema.attempts, _THIS, columns=("exit",))
_PART = Statement(
    select(_P.sha256, _P.size).where(
        _P.subject == b("subject_"), _P.snapshot == b("snapshot_"), _P.seq == b("seq_")
    )
)
_ADD_PART = keeping(schema.parts, "subject", "snapshot", "seq", "sha256", "size")
_PARTS = Statement(
    select(_P.seq, _P.sha256, _P.size)
    .where(_P.subject == b("subject_"), _P.snapshot == b("snapshot_"))
    .order_by(_P.seq)
)
_COMMITTED = Statement(select(_A["commit"], _A.state).where(_THIS))
_COMMIT = updating(
    schema.attempts, _THIS, among(_A.state, "open", "collecting"), columns=("commit", "state")
)
_SNAPSHOT = updating(
    schema.attempts, _THIS, among(_A.state, "open", "collecting"), columns=("commit",)
)
_SCORE = Statement(select(_A.first_score_sha).where(_THIS))
_SET_SCORE = updating(schema.attempts, _THIS, columns=("first_score_sha",))


class Sessions:
    _db: Database
    _clock: Clock

    async def session(self, subject: str) -> AttemptRow:
        """RowMissing when there is no such session."""
        return AttemptRow.of(
            _found(subject, await self._db.read(lambda t: t.one(_SESSION, subject_=subject)))
        )

    async def token_serial(self, subject: str, nonce: str) -> int:
        """Return the serial for a shim's nonce: the same for the same nonce, else the next one.

        The greatest serial is the good one. Superseded when the session is closed.
        """

        def change(t: Transaction) -> int:
            known, serial, state = _found(subject, t.one(_TOKEN, subject_=subject))
            if state == "closed":
                raise Superseded(f"session {subject} is closed")
            if known == nonce:
                return int(serial)
            t.run(_NEW_TOKEN, subject_=subject, nonce=nonce, serial=serial + 1)
            return int(serial) + 1

        return await self._db.write(change)

    async def mark_agent_started(self, subject: str) -> float:
        """Start the agent's clock; the first call wins. Returns its start."""
        now = self._clock.now()

        def change(t: Transaction) -> float:
            (started,) = _found(subject, t.one(_STARTED, subject_=subject))
            if started is not None:
                return float(started)
            t.run(_START, subject_=subject, agent_started_at=now)
            post(t, subject, "started", now)
            t.wake(("session", subject))
            return now

        return await self._db.write(change)

    async def end_solving(self, subject: str, end: SolveEnd) -> SolveEnd:
        """Record what ended the solving; the first event wins. Returns the one that counts."""
        now = self._clock.now()
        return await self._db.write(lambda t: end_session(t, subject, end, None, now))

    async def record_exit(self, subject: str, exit_: AgentExit) -> SolveEnd:
        """Keep the agent's own end as a claim; it counts only if nothing ended solving before."""
        now, claim = self._clock.now(), exit_.model_dump_json()
        return await self._db.write(
            lambda t: end_session(t, subject, SolveEnd(exit_.kind), claim, now)
        )

    async def record_part(self, subject: str, snapshot: str, part: Part) -> bool:
        """Note a stored part; False = known already. Conflict when other bytes had its number."""

        def change(t: Transaction) -> bool:
            known = t.one(_PART, subject_=subject, snapshot_=snapshot, seq_=part.seq)
            if known is not None:
                if known != (part.sha256, part.size):
                    raise Conflict(f"part {part.seq} of {snapshot} was stored with other bytes")
                return False
            t.run(
                _ADD_PART,
                subject=subject,
                snapshot=snapshot,
                seq=part.seq,
                sha256=part.sha256,
                size=part.size,
            )
            return True

        return await self._db.write(change)

    async def parts(self, subject: str, snapshot: str) -> list[Part]:
        rows = await self._db.read(lambda t: t.all(_PARTS, subject_=subject, snapshot_=snapshot))
        return [Part(seq=seq, sha256=sha256, size=size) for seq, sha256, size in rows]

    async def record_commit(self, subject: str, commit: Commit) -> bool:
        """Keep a manifest; False = known already, or a snapshot that came after the final one.

        Conflict when it names a part that was never stored, or when another final one is there.
        """
        now, text = self._clock.now(), commit.model_dump_json()

        def change(t: Transaction) -> bool:
            known, state = _found(subject, t.one(_COMMITTED, subject_=subject))
            if known == text:
                return False
            if state not in {"open", "collecting"}:
                if commit.final and state == "committed":
                    raise Conflict(f"session {subject} was committed with another manifest")
                return False
            _check_parts(t, subject, commit)
            if commit.final:
                t.run(_COMMIT, subject_=subject, commit=text, state="committed")
            else:
                t.run(_SNAPSHOT, subject_=subject, commit=text)
            post(t, subject, "commit" if commit.final else "snapshot", now)
            t.wake(("session", subject))
            return True

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


def end_session(
    t: Transaction, subject: str, end: SolveEnd, claim: str | None, now: float
) -> SolveEnd:
    """Set the solve end unless there is one, keep the claim, and return the end that counts."""
    known, exit_, state = _found(subject, t.one(_END, subject_=subject))
    if known is None and state != "closed":
        t.run(_SET_END, subject_=subject, solve_end=end.value, solve_ended_at=now, exit_=claim)
        post(t, subject, "exit", now)
        t.wake(("session", subject))
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
