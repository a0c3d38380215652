"""Pulls a sweep: first what sums its runs up, then whatever else is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from fde_ray.model.base import Record
from fde_ray.model.errors import StoreError, UserError
from fde_ray.model.result import RunResult
from fde_ray.store.errors import SweepMissing
from fde_ray.store.objects import ObjectStore, layout
from fde_ray.store.results import (
    Finding,
    Mark,
    ReadResult,
    checked_result,
    parse_result,
    read_mark,
    result_bytes,
)
from fde_ray.store.side_by_side import AT_ONCE, all_done, side_by_side
from fde_ray.store.sweep_runs import PlacedRun, read_runs

from .fetching import Fetcher, Unsound
from .keeping import Keeper
from .selecting import (
    Kind,
    Wanted,
    Where,
    archives,
    ends,
    facts_of,
    facts_with,
    small_objects,
)

MOST_UNREADABLE = 32
"""So many objects in a row that cannot be read: it is the store, not the objects."""
ARCHIVES_AT_ONCE = 4


class Standing(NamedTuple):
    """How far a pull is."""

    marked: int
    """Runs of the sweep that have ended."""
    seen: int
    results: int
    files: int
    bytes_: int


class Pull(Record):
    """What a pull came to. Counts of runs, then of other files."""

    marked: int
    selected: int
    written: int
    unchanged: int
    without_result: int
    files_written: int
    files_unchanged: int
    bytes_read: int
    findings: tuple[Finding, ...]


class Selected(NamedTuple):
    mark: Mark
    path: str
    """Of its result in the folder, if it has one."""


class Puller:
    def __init__(
        self,
        objects: ObjectStore,
        tenant: str,
        sweep: str,
        keeper: Keeper,
        *,
        kinds: frozenset[Kind],
        where: Where,
        at_once: int = AT_ONCE,
        watch: Callable[[Standing], None] = lambda _: None,
    ) -> None:
        self._objects, self._tenant, self._sweep, self._keeper = objects, tenant, sweep, keeper
        self._kinds, self._where, self._at_once, self._watch = kinds, where, at_once, watch
        self._fetcher = Fetcher(objects, keeper, self._count)
        self._placed: dict[tuple[str, str], PlacedRun] = {}
        self._marked = self._seen = self._written = self._unchanged = self._bytes = 0
        self._files = self._files_unchanged = self._unreadable = 0
        self._findings: list[Finding] = []
        self.selected: list[Selected] = []
        self.marks: list[Mark] = []
        """Of all runs that have ended, also of those that are not wanted."""
        self.runs: tuple[PlacedRun, ...] | None = None
        """What the sweep plans; None = the bucket does not tell."""

    async def summaries(self) -> Pull:
        """Fetch the results; UserError when there is no such sweep, or the store is away."""
        keys = await self._objects.list(layout.marks_prefix(self._tenant, self._sweep))
        self.runs = await read_runs(self._objects, self._tenant, self._sweep)
        if not keys and self.runs is None:
            raise SweepMissing(self._tenant, self._sweep)
        self._placed = {(run.run_id, run.grade_id): run for run in self.runs or ()}
        self._marked = len(keys)
        async for found in side_by_side(keys, self._summary, at_once=self._at_once):
            if found is not None:
                self.selected.append(found)
        return self.pull()

    async def rest(self) -> Pull:
        """Fetch what else is asked for, one kind after the other within each run."""
        kinds = self._kinds - {Kind.SUMMARIES}
        if kinds:
            at_once = ARCHIVES_AT_ONCE if kinds & _HEAVY else self._at_once
            await all_done(self.selected, lambda one: self._others(one, kinds), at_once=at_once)
        return self.pull()

    def pull(self) -> Pull:
        return Pull(
            marked=self._marked,
            selected=len(self.selected),
            written=self._written,
            unchanged=self._unchanged,
            without_result=sum(one.mark.result_sha256 is None for one in self.selected),
            files_written=self._files,
            files_unchanged=self._files_unchanged,
            bytes_read=self._bytes,
            findings=tuple(self._findings),
        )

    async def _summary(self, key: str) -> Selected | None:
        try:
            return await self._selected(key)
        finally:
            self._seen += 1
            self._tell()

    async def _selected(self, key: str) -> Selected | None:
        mark = self._known(key) or self._sound(await read_mark(self._objects, key))
        if mark is None:
            return None
        self.marks.append(mark)
        self._keeper.keep_mark(mark)
        facts = facts_of(mark, self._placed.get((mark.run_id, mark.grade_id)))
        one = Selected(mark, f"runs/{mark.run_id}.{mark.grade_id}.json")
        if mark.result_sha256 is None:
            return one if self._where.fits(facts) else None
        if not self._where.needs(facts) and not self._where.fits(facts):
            return None
        held = self._keeper.held(one.path, mark.result_sha256)
        data = held or await self._result_data(mark)
        if data is None:
            return None
        if self._where.needs(facts) and not self._where.fits(facts_with(facts, parse_result(data))):
            return None
        self._unchanged += held is not None
        if held is None:
            self._keeper.keep(one.path, data)
            self._written += 1
        return one

    def _known(self, key: str) -> Mark | None:
        named = layout.parse_mark(key)
        return None if named is None else self._keeper.mark(*named)

    def _sound(self, read: ReadResult | None) -> Mark | None:
        if read is None or read.finding is None:
            return None if read is None else read.mark
        self._found(read.finding)
        return None

    async def _result_data(self, mark: Mark) -> bytes | None:
        """Return the bytes of a sound result; None = there is a finding."""
        data = await result_bytes(self._objects, self._tenant, mark)
        if isinstance(data, Finding):
            self._found(data)
            return None
        self._count(len(data))
        return data if self._sound(checked_result(self._tenant, mark, data)) else None

    async def _others(self, one: Selected, kinds: frozenset[Kind]) -> None:
        run, grade = one.mark.run_id, one.mark.grade_id
        names = {kind.value for kind in kinds}
        if one.mark.is_final and names <= self._keeper.completed(run, grade):
            return
        before = len(self._findings)
        prefix = layout.run_prefix(self._tenant, run)
        keys = await self._objects.list(prefix)
        for wanted in sorted(small_objects(keys, prefix, run, grade, kinds), key=_order):
            await self._checked(self._fetcher.small(wanted))
        counting = await self._counting(one, keys, prefix) if Kind.WORKSPACES in kinds else None
        for wanted_archive in archives(keys, prefix, run, grade, kinds, counting):
            await self._checked(self._fetcher.archive(wanted_archive))
        if one.mark.is_final and len(self._findings) == before:
            self._keeper.complete(run, grade, tuple(sorted(names)))

    async def _counting(
        self, one: Selected, keys: list[str], prefix: str
    ) -> tuple[int, str] | None:
        """Return attempt and snapshot of the workspace that the run stands by."""
        found = ends(keys, prefix)
        attempt = self._attempt_of(one) or max(found, default=None)
        if attempt is None or attempt not in found:
            return None
        try:
            snapshot = json.loads(await self._objects.get(found[attempt]))["snapshot"]
        except StoreError as error:
            self._found(Unsound("unreadable", found[attempt], error.detail).finding)
            return None
        except (ValueError, KeyError, TypeError):
            self._found(Unsound("malformed", found[attempt], "it names no snapshot").finding)
            return None
        return None if snapshot is None else (attempt, str(snapshot))

    def _attempt_of(self, one: Selected) -> int | None:
        """Return the attempt that counts; None = the run has no result that says."""
        data = one.mark.result_sha256 and self._keeper.held(one.path, one.mark.result_sha256)
        result: RunResult | None = parse_result(data) if data else None
        counting = [note.attempt for note in result.attempts if note.kind is None] if result else []
        return counting[-1] if counting else None

    async def _checked(self, fetch: Coroutine[Any, Any, bool]) -> None:
        try:
            fetched = await fetch
        except Unsound as unsound:
            self._found(unsound.finding)
        else:
            self._files += fetched
            self._files_unchanged += not fetched
            self._unreadable = 0
        self._tell()

    def _found(self, finding: Finding) -> None:
        self._findings.append(finding)
        self._unreadable = self._unreadable + 1 if finding.kind == "unreadable" else 0
        if self._unreadable > MOST_UNREADABLE:
            raise UserError(f"the store cannot be read: {finding.reason}; pull again to go on")

    def _count(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        self._unreadable = 0
        self._tell()

    def _tell(self) -> None:
        results = self._written + self._unchanged
        self._watch(Standing(self._marked, self._seen, results, self._files, self._bytes))


_HEAVY = frozenset({Kind.WORKSPACES, Kind.EXTRACTIONS})
_PLACES = {kind: place for place, kind in enumerate(Kind)}


def _order(wanted: Wanted) -> tuple[int, str]:
    return _PLACES[wanted.kind], wanted.key
