"""What a supervisor does to a run: move its phase, open and close its sessions."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from sqlalchemy import bindparam as b
from sqlalchemy import exists, func, or_, select

from fde_ray.model.clock import Clock
from fde_ray.model.errors import Superseded
from fde_ray.model.failures import FailureKind
from fde_ray.model.session import SessionInputs
from fde_ray.model.states import GradeState, Phase, SolveEnd
from fde_ray.store.errors import RowMissing

from . import schema
from .admission import ADMITTED
from .database import Database, Statement, Transaction, among, inserting, updating
from .leases import check_epoch
from .pauses import CLOSE_PAUSE
from .rows import AttemptRole, AttemptRow, Epoch, Standing
from .sweeps import revive
from .ungraded import void_grades

_R, _A, _S, _G = schema.runs.c, schema.attempts.c, schema.shards.c, schema.grades.c

_JOINED = schema.attempts.join(schema.runs, _A.run_id == _R.run_id)
ATTEMPTS = select(
    *(_A[name.removesuffix("_json")] for name in AttemptRow._fields[:-5]),
    *(_R.phase, _R.attempt, _R.case_id, _R.repeat, _R.budget_usd),
).select_from(_JOINED)
STANDINGS = select(*(_A[name] for name in Standing._fields[:-2]), _R.phase, _R.attempt).select_from(
    _JOINED
)
_ATTEMPTS_OF = Statement(
    ATTEMPTS.where(_A.run_id == b("run_id_"), _A.role == b("role_")).order_by(
        _A.grade_id, _A.route, _A.number
    )
)
_LIVE_ATTEMPT = Statement(
    ATTEMPTS.where(
        _A.run_id == b("run_id_"),
        _A.role == "solve",
        _A.number == _R.attempt,
        _A.state != "closed",
    )
)
_OPEN_SESSIONS = Statement(
    ATTEMPTS.where(among(_A.state, "open", "collecting", "committed")).order_by(_A.subject)
)
_ADD_ATTEMPT = inserting(
    schema.attempts,
    "subject",
    "run_id",
    "grade_id",
    "route",
    "role",
    "number",
    "inputs",
    "state",
    "serial",
    "started_at",
)
_KNOWN_ATTEMPT = Statement(select(_A.subject).where(_A.subject == b("subject_")))
_PENDING = Statement(
    select(_G.state).where(
        _G.run_id == b("run_id_"),
        _G.grade_id == b("grade_id_"),
        _G.state == GradeState.PENDING.value,
    )
)
_NEXT_ATTEMPT = updating(
    schema.runs,
    _R.run_id == b("run_id_"),
    _R.phase == b("expect_"),
    _R.attempt == b("last_"),
    ADMITTED,
    columns=("phase", "attempt", "solve_end", "failure", "detail", "updated_at"),
    started_at=func.coalesce(_R.started_at, b("now_")),
)
_CLOSE = updating(
    schema.attempts,
    _A.subject == b("subject_"),
    _A.state != "closed",
    columns=("state", "failure", "result"),
    detail=func.coalesce(b("detail_"), _A.detail),
    solve_end=func.coalesce(_A.solve_end, b("end_")),
    ended_at=func.coalesce(_A.ended_at, b("now_")),
)
_PRUNE = Statement(schema.replies.delete().where(schema.replies.c.subject == b("subject_")))
_HANDLE = updating(
    schema.attempts,
    _A.subject == b("subject_"),
    or_(_A.handle.is_(None), _A.handle == b("same_")),
    columns=("handle",),
)
_RUN_CHANGES = frozenset({"solve_end", "failure", "detail"})


@lru_cache(maxsize=64)
def _moving(columns: tuple[str, ...]) -> Statement:
    # Whoever takes the shard over waits for this change, or this change sees the takeover.
    fence = exists(
        select(_S.shard)
        .where(_S.shard == _R.shard, _S.epoch == b("epoch_"))
        .correlate(schema.runs)
        .with_for_update(read=True)
    )
    return updating(
        schema.runs,
        _R.run_id == b("run_id_"),
        _R.phase == b("expect_"),
        fence,
        columns=("phase", "ended_at", "updated_at", *columns),
    )


def move(
    t: Transaction,
    run_id: str,
    epoch: Epoch,
    expect: Phase,
    to: Phase,
    now: float,
    changes: dict[str, Any],
) -> None:
    """Set phase and `changes` if the run is in `expect` and `epoch` holds it; else Superseded.

    A run that goes back to the queue loses its grant; one that ends with nothing to grade has no
    grade.
    """
    if to is Phase.QUEUED:
        changes = {**changes, "granted_at": None}
    t.cas(
        _moving(tuple(sorted(changes))),
        f"run {run_id} is not in {expect.value}, or another driver holds it",
        run_id_=run_id,
        expect_=expect.value,
        epoch_=epoch.number,
        phase=to.value,
        ended_at=now if to.is_terminal else None,
        updated_at=now,
        **changes,
    )
    void_grades(t, run_id, to, changes.get("solve_end"))
    t.wake(("run", run_id), ("runs",))


_W, _SW = schema.wants.c, schema.sweeps.c
# All sweeps are locked, also the cancelled ones: one of them may just be resumed.
_WANTING = Statement(
    select(_W.tenant, _W.sweep, _SW.state)
    .select_from(
        schema.wants.join(schema.sweeps, (_SW.tenant == _W.tenant) & (_SW.name == _W.sweep))
    )
    .where(_W.run_id == b("run_id_"))
    .order_by(_W.tenant, _W.sweep)
    .with_for_update(read=True, of=schema.sweeps)
)


class Supervision:
    _db: Database
    _clock: Clock

    async def move_run(
        self, run_id: str, epoch: Epoch, expect: Phase, to: Phase, **changes: Any
    ) -> None:
        """Compare-and-set the phase. `changes`: solve_end, failure, detail. Superseded if lost."""
        _check_names(changes, _RUN_CHANGES)
        now, plain = self._clock.now(), {k: getattr(v, "value", v) for k, v in changes.items()}
        await self._db.write(lambda t: move(t, run_id, epoch, expect, to, now, plain))

    async def cancel_run(self, run_id: str, epoch: Epoch, expect: Phase) -> None:
        """Cancel a run that was not wanted. It is queued again when a sweep has begun to want it
        while its session was being stopped."""
        now, changes = self._clock.now(), {"solve_end": SolveEnd.CANCELLED.value}

        def change(t: Transaction) -> None:
            move(t, run_id, epoch, expect, Phase.CANCELLED, now, changes)
            for tenant, sweep, state in t.all(_WANTING, run_id_=run_id):
                if state != "cancelled":
                    revive(t, tenant, sweep, now)

        await self._db.write(change)

    async def open_attempt(
        self,
        run_id: str,
        epoch: Epoch,
        inputs: SessionInputs,
        *,
        expect: Phase = Phase.QUEUED,
        to: Phase = Phase.PROVISIONING,
    ) -> None:
        """Open solving attempt `inputs.subject` (`<run>.<n>`, n = the run's attempt + 1) and move.

        Superseded when the run is elsewhere, n is taken, no running sweep wants the run any more,
        or another driver holds it.
        """
        text, now = inputs.model_dump_json(), self._clock.now()
        number = int(inputs.subject.rpartition(".")[2])

        def change(t: Transaction) -> None:
            check_epoch(t, run_id, epoch)
            t.cas(
                _NEXT_ATTEMPT,
                f"run {run_id} is not in {expect.value} before attempt {number}, or must wait",
                run_id_=run_id,
                expect_=expect.value,
                last_=number - 1,
                now_=now,
                phase=to.value,
                attempt=number,
                solve_end=None,
                failure=None,
                detail=None,
                updated_at=now,
            )
            _add_attempt(t, inputs.subject, run_id, None, None, "solve", number, text, now)
            t.wake(("run", run_id), ("runs",))

        await self._db.write(change)

    async def open_try(
        self, run_id: str, grade_id: str, route: int, epoch: Epoch, inputs: SessionInputs
    ) -> None:
        """Open try `inputs.subject` (`<run>/<grade>/<route>.<n>`); Superseded if taken."""
        text, now = inputs.model_dump_json(), self._clock.now()
        number = int(inputs.subject.rpartition(".")[2])

        def change(t: Transaction) -> None:
            check_epoch(t, run_id, epoch)
            if t.one(_KNOWN_ATTEMPT, subject_=inputs.subject) is not None:
                raise Superseded(f"{inputs.subject} is open already")
            _add_attempt(t, inputs.subject, run_id, grade_id, route, "extract", number, text, now)

        await self._db.write(change)

    async def open_box(
        self, run_id: str, grade_id: str, epoch: Epoch, inputs: SessionInputs
    ) -> None:
        """Open box `inputs.subject` (`<run>/<grade>/<role>.<n>`); Superseded if taken, or if the
        grade is not pending."""
        text, now = inputs.model_dump_json(), self._clock.now()
        number, role = int(inputs.subject.rpartition(".")[2]), inputs.role

        def change(t: Transaction) -> None:
            check_epoch(t, run_id, epoch)
            if t.one(_PENDING, run_id_=run_id, grade_id_=grade_id) is None:
                raise Superseded(f"grade {grade_id} of run {run_id} is not pending")
            if t.one(_KNOWN_ATTEMPT, subject_=inputs.subject) is not None:
                raise Superseded(f"{inputs.subject} is open already")
            _add_attempt(t, inputs.subject, run_id, grade_id, None, role, number, text, now)

        await self._db.write(change)

    async def close_attempt(
        self,
        subject: str,
        epoch: Epoch,
        *,
        solve_end: SolveEnd | None = None,
        failure: FailureKind | None = None,
        detail: str | None = None,
        result: Any = None,
    ) -> bool:
        """Close a session: its tokens are void from here on, and its calls' replies are forgotten.

        False = it was closed before.

        solve_end: recorded only when nothing ended the solving before. result: any JSON.
        """
        now, found = self._clock.now(), None if result is None else json.dumps(result)

        def change(t: Transaction) -> bool:
            check_epoch(t, subject, epoch)
            return _close(t, subject, now, solve_end, failure, detail, found)

        return await self._db.write(change)

    async def record_handle(self, subject: str, handle: Any) -> bool:
        """Keep what the sandbox needs to find the session again, any JSON, for good.

        False = the session is in another sandbox, which was recorded before.
        """
        return await self._db.write(lambda t: _keep_handle(t, subject, json.dumps(handle)))

    async def begin_solving(self, run_id: str, epoch: Epoch, subject: str, handle: Any) -> bool:
        """Keep the handle of a session that has started, and move its run to solving.

        The handle is kept even when another driver holds the run by now: Superseded comes after.
        False = the session is in another sandbox, which was recorded before; nothing has changed.
        """
        now, text = self._clock.now(), json.dumps(handle)

        def change(t: Transaction) -> bool | Superseded:
            if not _keep_handle(t, subject, text):
                return False
            try:
                move(t, run_id, epoch, Phase.PROVISIONING, Phase.SOLVING, now, {})
            except Superseded as lost:
                return lost
            return True

        done = await self._db.write(change)
        if isinstance(done, Superseded):
            raise done
        return done

    async def finish_solving(
        self, run_id: str, epoch: Epoch, expect: Phase, subject: str, solve_end: SolveEnd
    ) -> None:
        """Move a run whose workspace is committed on to extracting, and close its attempt."""
        now = self._clock.now()

        def change(t: Transaction) -> None:
            changes = {"solve_end": solve_end.value}
            move(t, run_id, epoch, expect, Phase.EXTRACTING, now, changes)
            _close(t, subject, now, solve_end, None, None, None)

        await self._db.write(change)

    async def attempts_of(self, run_id: str, role: AttemptRole = "solve") -> list[AttemptRow]:
        return await self._db.read(lambda t: attempts_of_run(t, run_id, role))

    async def live_attempt(self, run_id: str) -> AttemptRow | None:
        """Return the latest solving attempt while it is not closed."""
        row = await self._db.read(lambda t: t.one(_LIVE_ATTEMPT, run_id_=run_id))
        return None if row is None else AttemptRow.of(row)

    async def open_sessions(self) -> list[AttemptRow]:
        """Return every session that is not closed, solving and extraction, for re-attaching."""
        return [AttemptRow.of(row) for row in await self._db.read(lambda t: t.all(_OPEN_SESSIONS))]


def attempts_of_run(t: Transaction, run_id: str, role: AttemptRole) -> list[AttemptRow]:
    return [AttemptRow.of(row) for row in t.all(_ATTEMPTS_OF, run_id_=run_id, role_=role)]


def _keep_handle(t: Transaction, subject: str, text: str) -> bool:
    """Compare and set: a session stays in the sandbox that was recorded first."""
    if t.run(_HANDLE, subject_=subject, same_=text, handle=text):
        return True
    if t.one(_KNOWN_ATTEMPT, subject_=subject) is None:
        raise RowMissing(f"there is no session {subject[:128]}")
    return False


def _close(
    t: Transaction,
    subject: str,
    now: float,
    solve_end: SolveEnd | None,
    failure: FailureKind | None,
    detail: str | None,
    result: str | None,
) -> bool:
    changed = t.run(
        _CLOSE,
        subject_=subject,
        end_=None if solve_end is None else solve_end.value,
        now_=now,
        state="closed",
        failure=None if failure is None else failure.value,
        detail_=detail,
        result=result,
    )
    t.run(CLOSE_PAUSE, subject_=subject, closed_at=now)
    t.run(_PRUNE, subject_=subject)
    t.wake(("session", subject))
    return changed == 1


def _add_attempt(
    t: Transaction,
    subject: str,
    run_id: str,
    grade_id: str | None,
    route: int | None,
    role: AttemptRole,
    number: int,
    inputs: str,
    now: float,
) -> None:
    t.run(
        _ADD_ATTEMPT,
        subject=subject,
        run_id=run_id,
        grade_id=grade_id,
        route=route,
        role=role,
        number=number,
        inputs=inputs,
        state="open",
        serial=0,
        started_at=now,
    )


def _check_names(changes: dict[str, Any], allowed: frozenset[str]) -> None:
    if unknown := changes.keys() - allowed:
        raise TypeError(f"cannot change {sorted(unknown)}; known: {sorted(allowed)}")
