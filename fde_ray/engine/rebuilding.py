"""Rebuilds the rows of a lost run store from the bucket and from what still runs.

What has a row is left alone, so that it may be killed and begun again. The incarnation rises first:
no driver of the lost store can change anything. Runs get their rows before a sweep wants them:
nothing is admitted until all of a sweep is there. A sweep with work left comes back paused.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from fde_ray.model.errors import FdeRayError, StoreError, Superseded, UserError, shortened
from fde_ray.model.plan import RunPlan
from fde_ray.model.specs import SweepSpec
from fde_ray.model.states import GradeState, Phase
from fde_ray.sandbox.listing import listed
from fde_ray.store.errors import RowMissing
from fde_ray.store.objects import layout
from fde_ray.store.results import Finding, Mark, read_mark
from fde_ray.store.runs import AttemptRow, Lease
from fde_ray.store.runs.rows import SweepState
from fde_ray.store.side_by_side import side_by_side
from fde_ray.store.sweep_runs import read_runs
from fde_ray.store.traces import RunTrace, read_run

from .comparison import HAS_RESULT, Pair, Standing
from .drift import change_of
from .inline import ALL_SHARDS
from .recovery import Fate, Remade, Wanted, remade
from .runtime import Runtime
from .sessions import SessionHost
from .submission import planned
from .versions import SpecVersions

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


class _Sweep(NamedTuple):
    name: str
    document: dict[str, Any]
    plans: tuple[RunPlan, ...]
    marks: dict[tuple[str, str], str]
    """Key of the mark of each (run, grade) that has one."""


class _Found(NamedTuple):
    trace: RunTrace
    remade: Remade
    findings: tuple[Finding, ...]


class Rebuilder:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._store, self._objects = runtime, runtime.store, runtime.objects
        self._tenant = runtime.tenant

    async def rebuild(self, *, dry_run: bool = False, watch: Watch | None = None) -> Rebuilt:
        """Add every row that the bucket can tell of and the store does not have.

        UserError when another process works on the store. dry_run: only look.
        """
        there = {sweep.name for sweep in await self._store.sweeps()}
        sweeps, problems = await self._sweeps(there)
        rows = await self._store.standings(tenant=self._tenant)
        missing = _missing(sweeps, {run for run, _ in rows})
        if dry_run or not sweeps:
            found = await self._restored(missing, sweeps, None, watch)
            return await self._report(sweeps, problems, found, rows, dry_run=dry_run)
        await self._store.refuse_if_held()
        await self._store.raise_incarnation()
        lease = await self._store.take_lease(shards=ALL_SHARDS)
        try:
            found = await self._restored(missing, sweeps, lease, watch)
            for sweep in sweeps:
                state = state_of(_fates(sweep, found, rows))
                await self._store.restore_sweep(
                    self._tenant, sweep.name, sweep.document, state, sweep.plans
                )
            await self._end_leftovers(lease)
            return await self._report(sweeps, problems, found, rows, dry_run=False)
        finally:
            await self._released(lease)

    async def _released(self, lease: Lease) -> None:
        try:
            await self._store.release_lease(lease)
        except (StoreError, Superseded) as error:
            log.warning("lease_left", extra={"reason": str(error)})

    async def _sweeps(self, there: set[str]) -> tuple[list[_Sweep], list[SweepRebuilt]]:
        """Return the sweeps of the bucket that have no row, and those that cannot be planned."""
        keys: dict[str, list[str]] = {}
        prefix = layout.sweeps_prefix(self._tenant)
        for key in await self._objects.list(prefix):
            keys.setdefault(key.removeprefix(prefix).partition("/")[0], []).append(key)
        found, problems = [], []
        for name in sorted(keys.keys() - there):
            try:
                found.append(await self._sweep(name, keys[name]))
            except _CannotPlan as error:
                problem = shortened(str(error), 500)
                problems.append(SweepRebuilt(name, 0, Counter(), None, problem))
        return found, problems

    async def _sweep(self, name: str, keys: Sequence[str]) -> _Sweep:
        specs = layout.specs_prefix(self._tenant, name)
        if not any(key.startswith(specs) for key in keys):
            raise _CannotPlan("the bucket holds no spec of it")
        try:
            document = await SpecVersions(self._objects, self._tenant).latest(name)
        except StoreError as error:
            raise _CannotPlan(error.detail) from error
        plans = await self._plans(name, document)
        marks = {}
        for key in keys:
            is_mark = key.startswith(layout.marks_prefix(self._tenant, name))
            if is_mark and (pair := layout.parse_mark(key)) is not None:
                marks[pair] = key
        return _Sweep(name, document, plans, marks)

    async def _plans(self, name: str, document: Mapping[str, Any]) -> tuple[RunPlan, ...]:
        """Plan a sweep as it was planned; _CannotPlan unless the runs are the very same."""
        science = {key: value for key, value in document.items() if key != "resolved"}
        try:
            spec = SweepSpec.model_validate(science)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            raise _CannotPlan(f"its spec is malformed: {first['loc']}: {first['msg']}") from error
        if spec.name != name:
            raise _CannotPlan(f"its spec is that of sweep {spec.name!r}")
        try:
            if (reason := _change(document.get("resolved"), self._runtime)) is not None:
                raise _CannotPlan(f"{reason} since it was planned; put that back and rebuild again")
            plans = planned(self._runtime, spec)
        except UserError as error:
            raise _CannotPlan(str(error)) from error
        try:
            runs = await read_runs(self._objects, self._tenant, name)
        except StoreError as error:
            log.warning("runs_not_listed", extra={"sweep": name, "reason": error.detail})
            runs = None
        if runs is not None and {(r.run_id, r.grade_id) for r in runs} != {
            (plan.run_id, plan.grade_id) for plan in plans
        }:
            raise _CannotPlan("this fde-ray plans other runs for it than the one that stored it")
        return plans

    async def _restored(
        self,
        missing: Mapping[str, Wanted],
        sweeps: Sequence[_Sweep],
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
            if key is None:
                continue
            read = await read_mark(self._objects, key)
            grade = trace.grades.get(plan.grade_id)
            findings += [] if read.finding is None else [read.finding]
            if read.mark is not None:
                findings += _disagreement(key, read.mark, grade and grade.sha256)
                if grade is None or grade.result is None:
                    marks[plan.grade_id] = read.mark
        made = remade(wanted, trace, marks, self._runtime.clock.now())
        return _Found(trace, made, tuple(findings))

    async def _report(
        self,
        sweeps: Sequence[_Sweep],
        problems: Sequence[SweepRebuilt],
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
        living, strangers = await self._sessions(found)
        return Rebuilt(
            dry_run=dry_run,
            incarnation=await self._store.incarnation(),
            runs=len(found),
            fates=Counter(one.remade.fate for one in found.values()),
            sweeps=tuple(sorted([*rebuilt, *problems])),
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
                void.append(handle.subject)
            elif await self._row(handle.subject) is None:
                strangers.append(handle.subject)
        return tuple(void), tuple(strangers)

    async def _row(self, subject: str) -> AttemptRow | None:
        try:
            return await self._store.session(subject)
        except RowMissing:
            return None


class _CannotPlan(FdeRayError):
    """Why a sweep of the bucket has no runs that could be rebuilt, in a sentence."""


def state_of(fates: Sequence[Fate]) -> SweepState:
    """Return the state in which a sweep comes back: with work left, a person says go on."""
    left = [fate for fate in fates if fate not in (Fate.DONE, Fate.SET_ASIDE)]
    if not left:
        return "running"
    return "cancelled" if all(fate is Fate.CANCELLED for fate in left) else "paused"


def _missing(sweeps: Sequence[_Sweep], rows: set[str]) -> dict[str, Wanted]:
    """Return the runs without a row, each with its distinct grades in the order of the sweeps."""
    found: dict[str, Wanted] = {}
    for plan, place in _placed(sweeps):
        if plan.run_id in rows:
            continue
        known = found.setdefault(plan.run_id, Wanted((plan,), place))
        if all(one.grade_id != plan.grade_id for one in known.plans):
            found[plan.run_id] = known._replace(plans=(*known.plans, plan))
    return found


def _placed(sweeps: Sequence[_Sweep]) -> Iterator[tuple[RunPlan, int]]:
    for sweep in sweeps:
        for place, plan in enumerate(sweep.plans):
            yield plan, place


def _fates(sweep: _Sweep, found: Mapping[str, _Found], rows: Mapping[Pair, Standing]) -> list[Fate]:
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


def _change(material: Any, runtime: Runtime) -> str | None:
    if not isinstance(material, dict):
        return "it does not tell what it was planned with, or that has changed"
    try:
        return change_of(material, runtime)
    except (AttributeError, TypeError):
        return "what it was planned with is not told as it should be, or has changed"


def _disagreement(key: str, mark: Mark, sha256: str | None) -> list[Finding]:
    if mark.result_sha256 is None or mark.result_sha256 == sha256:
        return []
    if sha256 is None:
        reason = "the mark names a result that is not there, or cannot be read"
        return [Finding(key=key, kind="missing", reason=reason)]
    reason = "the mark names other bytes than the result has; the result counts"
    return [Finding(key=key, kind="hash_differs", reason=reason)]
