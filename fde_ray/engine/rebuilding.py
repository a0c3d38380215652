"""Rebuilds the rows of a lost run store from the bucket and from what still runs.

What has a row is left alone, so that it may be killed and begun again. The incarnation rises first:
no driver of the lost store can change anything. Runs get their rows before a sweep wants them:
nothing is admitted until all of a sweep is there. A sweep with work left comes back paused.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from fde_ray.model.errors import StoreError, Superseded
from fde_ray.model.plan import RunPlan
from fde_ray.model.states import GradeState, Phase
from fde_ray.sandbox.listing import listed, turns_of
from fde_ray.store.errors import RowMissing
from fde_ray.store.results import Finding, Mark, read_mark
from fde_ray.store.runs import AttemptRow, Lease, LeaseKeeper, LeaseTimes
from fde_ray.store.runs.keeper import SHIPPED
from fde_ray.store.runs.rows import SweepState
from fde_ray.store.side_by_side import side_by_side
from fde_ray.store.traces import RunTrace, read_run

from .comparison import HAS_RESULT, Pair, Standing
from .inline import ALL_SHARDS
from .kept_sweeps import KeptSweep, KeptSweeps
from .recovery import Fate, Living, Remade, Wanted, remade
from .runtime import Runtime
from .sessions import SessionHost
from .supervisor import solving_inputs

log = logging.getLogger(__name__)

BATCH = 100
NOT_IN_THE_BUCKET = (
    "whether a sweep was running, paused or cancelled (one with work left is paused now)",
    "owners, priorities and budgets of sweeps",
    "calls and dialogue of sessions that were at work",
    "grades that no sweep wants any more (their results stay in the bucket)",
)
"""What is lost for good with the store."""


class SweepRebuilt(NamedTuple):
    """fates: of the runs that had no row. problem: why the sweep cannot be rebuilt."""

    name: str
    runs: int
    fates: Counter[Fate]
    state: SweepState | None
    problem: str | None = None


class Rebuilt(NamedTuple):
    """What a rebuild did, or with `dry_run` would do."""

    dry_run: bool
    incarnation: int
    runs: int
    fates: Counter[Fate]
    sweeps: tuple[SweepRebuilt, ...]
    findings: tuple[Finding, ...]
    unknown_calls: int
    """Runs some of whose calls the bucket does not hold: their cost is unknown."""
    living: tuple[str, ...]
    """Sessions that still run, of attempts that are void: the next owner of the run ends them."""
    strangers: tuple[str, ...]
    """Sessions that still run here and belong to no run of these sweeps: they were left alone."""

    @property
    def problems(self) -> tuple[SweepRebuilt, ...]:
        return tuple(sweep for sweep in self.sweeps if sweep.problem is not None)


Watch = Callable[[int, int], None]
"""Is told how many runs were looked through, of how many."""


def _unheeded(lease: Lease, reason: str) -> None:
    """The keeper has told, and the epoch refuses what is still written."""


class _Found(NamedTuple):
    trace: RunTrace
    remade: Remade
    findings: tuple[Finding, ...]


class Rebuilder:
    """lease_times: others than the shipped ones only where time itself is scaled."""

    def __init__(self, runtime: Runtime, lease_times: LeaseTimes = SHIPPED) -> None:
        self._runtime, self._store, self._objects = runtime, runtime.store, runtime.objects
        self._tenant, self._lease_times = runtime.tenant, lease_times

    async def rebuild(self, *, dry_run: bool = False, watch: Watch | None = None) -> Rebuilt:
        """Add every row that the bucket can tell of and the store does not have.

        UserError when another process works on the store. dry_run: only look.
        """
        there = {sweep.name for sweep in await self._store.sweeps()}
        sweeps, problems = await KeptSweeps(self._runtime).read(there)
        rows = await self._store.standings(tenant=self._tenant)
        missing = _missing(sweeps, {run for run, _ in rows})
        if dry_run or not sweeps:
            found = await self._restored(missing, sweeps, None, watch)
            return await self._report(sweeps, problems, found, rows, dry_run=dry_run)
        await self._store.refuse_if_held()
        await self._store.raise_incarnation()
        async with self._leased() as lease:
            found = await self._restored(missing, sweeps, lease, watch)
            for sweep in sweeps:
                state = state_of(_fates(sweep, found, rows))
                await self._store.restore_sweep(
                    self._tenant, sweep.name, sweep.document, state, sweep.plans
                )
            await self._end_leftovers(lease)
            return await self._report(sweeps, problems, found, rows, dry_run=False)

    @asynccontextmanager
    async def _leased(self) -> AsyncIterator[Lease]:
        """Hold all shards inside the block, for as long as it takes. What is written under a lease
        that was lost all the same is refused."""
        runtime, times = self._runtime, self._lease_times
        keeper = LeaseKeeper(runtime.location, _unheeded, clock=runtime.clock, times=times)
        async with keeper:
            lease = await self._store.take_lease(shards=ALL_SHARDS, ttl=times.ttl)
            keeper.keep(lease)
            try:
                yield lease
            finally:
                keeper.forget(lease)
                await self._released(lease)

    async def _released(self, lease: Lease) -> None:
        try:
            await self._store.release_lease(lease)
        except (StoreError, Superseded) as error:
            log.warning("lease_left", extra={"reason": str(error)})

    async def _restored(
        self,
        missing: Mapping[str, Wanted],
        sweeps: Sequence[KeptSweep],
        lease: Lease | None,
        watch: Watch | None,
    ) -> dict[str, _Found]:
        """Look through the runs, and with a lease add their rows."""
        marks = {pair: key for sweep in sweeps for pair, key in sweep.marks.items()}
        found: dict[str, _Found] = {}
        batch: list[_Found] = []

        async def look(wanted: Wanted) -> _Found:
            return await self._looked_through(wanted, marks)

        async for one in side_by_side(missing.values(), look):
            found[one.trace.run_id] = one
            batch.append(one)
            if watch is not None:
                watch(len(found), len(missing))
            if lease is not None and len(batch) >= BATCH:
                await self._add(batch)
                batch = []
        if lease is not None and batch:
            await self._add(batch)
        return found

    async def _add(self, batch: Sequence[_Found]) -> None:
        await self._store.restore_runs(self._tenant, [one.remade.run for one in batch])

    async def _end_leftovers(self, lease: Lease) -> list[str]:
        """End what still runs of runs that have ended; the next owner of the others ends theirs."""
        host, ended = SessionHost(self._runtime, lease.epoch), []
        for handle in await listed(self._runtime.sandbox):
            row = await self._row(handle.subject)
            if row is not None and row.state == "closed" and row.run_phase.is_terminal:
                await host.clear(row)
                ended.append(handle.subject)
        return ended

    async def _looked_through(self, wanted: Wanted, keys: Mapping[tuple[str, str], str]) -> _Found:
        run_id = wanted.plans[0].run_id
        trace = await read_run(self._objects, self._tenant, run_id)
        marks: dict[str, Mark] = {}
        findings = list(trace.findings)
        for plan in wanted.plans:
            key = keys.get((run_id, plan.grade_id))
            read = None if key is None else await read_mark(self._objects, key)
            if key is None or read is None:
                continue
            grade = trace.grades.get(plan.grade_id)
            findings += [] if read.finding is None else [read.finding]
            if read.mark is not None:
                findings += _disagreement(key, read.mark, grade and grade.sha256)
                if grade is None or grade.result is None:
                    marks[plan.grade_id] = read.mark
        now, living = self._runtime.clock.now(), await self._living(wanted.plans[0], trace)
        made = remade(wanted, trace, marks, now, living)
        return _Found(trace, made, tuple(findings))

    async def _living(self, plan: RunPlan, trace: RunTrace) -> Living | None:
        """Return the session of the last attempt, if it was noted, has no end, and runs here."""
        last = trace.attempts[-1] if trace.attempts else None
        if last is None or last.note is None or last.end is not None:
            return None
        runtime = self._runtime
        handle = runtime.sandbox.handle_of(last.subject)
        if handle is None or await runtime.sandbox.state(handle) != "running":
            return None
        turns = await turns_of(runtime.sandbox, handle)
        if turns is None:
            # A shim that nobody reads notes its turns: one that has no reply yet is among them.
            turns = last.posted
        keys = await runtime.material.keys(plan.case_id)
        inputs = solving_inputs(plan, last.subject, keys, runtime.profile)
        if turns is None:
            return None
        return Living(turns, handle.jsonable(), inputs.model_dump_json())

    async def _report(
        self,
        sweeps: Sequence[KeptSweep],
        problems: Mapping[str, str],
        found: Mapping[str, _Found],
        rows: Mapping[Pair, Standing],
        *,
        dry_run: bool,
    ) -> Rebuilt:
        rebuilt = []
        for sweep in sweeps:
            fates = _fates(sweep, found, rows)
            runs = len(sweep.plans)
            rebuilt.append(SweepRebuilt(sweep.name, runs, Counter(fates), state_of(fates)))
        for name, problem in problems.items():
            rebuilt.append(SweepRebuilt(name, 0, Counter(), None, problem))
        living, strangers = await self._sessions(found)
        return Rebuilt(
            dry_run=dry_run,
            incarnation=await self._store.incarnation(),
            runs=len(found),
            fates=Counter(one.remade.fate for one in found.values()),
            sweeps=tuple(sorted(rebuilt)),
            findings=tuple(finding for one in found.values() for finding in one.findings),
            unknown_calls=sum(bool(one.remade.unknown) for one in found.values()),
            living=living,
            strangers=strangers,
        )

    async def _sessions(
        self, found: Mapping[str, _Found]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the subjects of sessions that run here: of void attempts, and of unknown runs."""
        void, strangers = [], []
        for handle in await listed(self._runtime.sandbox):
            run_id = handle.subject.partition("/")[0].partition(".")[0]
            if await self._runtime.sandbox.state(handle) != "running":
                continue
            if run_id in found:
                if found[run_id].remade.is_going_on(handle.subject):
                    continue
                void.append(handle.subject)
            elif await self._row(handle.subject) is None:
                strangers.append(handle.subject)
        return tuple(void), tuple(strangers)

    async def _row(self, subject: str) -> AttemptRow | None:
        try:
            return await self._store.session(subject)
        except RowMissing:
            return None


def state_of(fates: Sequence[Fate]) -> SweepState:
    """Return the state in which a sweep comes back: with work left, a person says go on."""
    left = [fate for fate in fates if fate not in (Fate.DONE, Fate.SET_ASIDE)]
    if not left:
        return "running"
    return "cancelled" if all(fate is Fate.CANCELLED for fate in left) else "paused"


def _missing(sweeps: Sequence[KeptSweep], rows: set[str]) -> dict[str, Wanted]:
    """Return the runs without a row, each with its distinct grades in the order of the sweeps."""
    found: dict[str, Wanted] = {}
    for plan, place in _placed(sweeps):
        if plan.run_id in rows:
            continue
        known = found.setdefault(plan.run_id, Wanted((plan,), place))
        if all(one.grade_id != plan.grade_id for one in known.plans):
            found[plan.run_id] = known._replace(plans=(*known.plans, plan))
    return found


def _placed(sweeps: Sequence[KeptSweep]) -> Iterator[tuple[RunPlan, int]]:
    for sweep in sweeps:
        for place, plan in enumerate(sweep.plans):
            yield plan, place


def _fates(
    sweep: KeptSweep, found: Mapping[str, _Found], rows: Mapping[Pair, Standing]
) -> list[Fate]:
    return [_fate(plan, found, rows) for plan in sweep.plans]


def _fate(plan: RunPlan, found: Mapping[str, _Found], rows: Mapping[Pair, Standing]) -> Fate:
    """Return what becomes of a (run, grade); a done run with this grade to make has work left."""
    pair = plan.run_id, plan.grade_id
    if (one := found.get(plan.run_id)) is not None:
        grades = {g.plan.grade_id: g.state for g in one.remade.run.grades}
        if one.remade.fate is Fate.DONE and grades[plan.grade_id] is GradeState.PENDING:
            return Fate.COLLECTED
        return one.remade.fate
    if pair not in rows:
        return Fate.QUEUED
    phase, grade = rows[pair]
    if phase is Phase.CANCELLED:
        return Fate.CANCELLED
    if grade in HAS_RESULT:
        return Fate.DONE
    return Fate.SET_ASIDE if phase is Phase.QUARANTINED else Fate.QUEUED


def _disagreement(key: str, mark: Mark, sha256: str | None) -> list[Finding]:
    if mark.result_sha256 is None or mark.result_sha256 == sha256:
        return []
    if sha256 is None:
        reason = "the mark names a result that is not there, or cannot be read"
        return [Finding(key=key, kind="missing", reason=reason)]
    reason = "the mark names other bytes than the result has; the result counts"
    return [Finding(key=key, kind="hash_differs", reason=reason)]
