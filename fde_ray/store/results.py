"""Finished runs read back from the bucket alone: marks say which there are, `result.json` the rest.

A malformed object never ends a reading: it becomes a `Finding` beside the results.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, TypeVar

from pydantic import Field, ValidationError

from fde_ray.model.base import Record, sha256_hex
from fde_ray.model.errors import StoreError, shortened
from fde_ray.model.result import RunResult
from fde_ray.model.states import GradeState, Phase

from .errors import KeyMissing
from .objects import ObjectStore, layout
from .side_by_side import side_by_side

R = TypeVar("R", bound=Record)

MAX_RESULT_BYTES = 64 * 2**20
MAX_MARK_BYTES = 64 * 2**10


class Mark(Record):
    """A terminal state of one (run, grade) that a sweep wants: small, and found by one LIST."""

    schema_: Literal["fde_ray.mark/1"] = Field(alias="schema", default="fde_ray.mark/1")
    run_id: str
    grade_id: str
    phase: Phase
    grade: GradeState
    result_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """Of the bytes of `result.json`; None = the run ended without one."""
    failure: str | None = None
    detail: str = ""

    @property
    def is_final(self) -> bool:
        """Whether no later state can take its place: a result that is there wins for ever."""
        return self.phase is Phase.DONE and self.result_sha256 is not None


FindingKind = Literal["missing", "malformed", "misplaced", "hash_differs", "unreadable"]


class Finding(Record):
    """An object that could not be taken for what it should be."""

    key: str
    kind: FindingKind
    reason: str


class ReadResult(Record):
    """One mark and what stands behind it. `result` None = the run has none, or see `finding`."""

    mark: Mark | None
    result: RunResult | None = None
    finding: Finding | None = None


async def write_mark(objects: ObjectStore, tenant: str, sweep: str, mark: Mark) -> None:
    """Write the mark of a terminal state; a later state of the same run takes its place."""
    key = layout.mark_key(tenant, sweep, mark.run_id, mark.grade_id)
    data = mark.model_dump_json().encode()
    if not await objects.create(key, data) and await objects.get(key) != data:
        await objects.delete(key)
        await objects.create(key, data)


async def read_results(objects: ObjectStore, tenant: str, sweep: str) -> AsyncIterator[ReadResult]:
    """Yield every marked run of a sweep in the order of run ids, sound or not."""
    keys = await objects.list(layout.marks_prefix(tenant, sweep))
    async for read in side_by_side(keys, lambda key: _read(objects, tenant, key)):
        if read is not None:
            yield read


async def results_of(objects: ObjectStore, tenant: str, sweep: str) -> AsyncIterator[RunResult]:
    """Yield the sound results of a sweep only."""
    async for read in read_results(objects, tenant, sweep):
        if read.result is not None and read.finding is None:
            yield read.result


async def verify(objects: ObjectStore, tenant: str, sweep: str) -> tuple[int, list[Finding]]:
    """Return how many results have the hash that their mark names, and all that is wrong."""
    sound, findings = 0, []
    async for read in read_results(objects, tenant, sweep):
        if read.finding is not None:
            findings.append(read.finding)
        elif read.result is not None:
            sound += 1
    return sound, findings


def parse_result(data: bytes) -> RunResult:
    """Return the record of `result.json`; ValueError says in a sentence what is wrong."""
    return _parsed(RunResult, data, MAX_RESULT_BYTES)


async def read_mark(objects: ObjectStore, key: str) -> ReadResult | None:
    """Return the mark under a key, without its result, or a finding.

    None = it was taken back meanwhile: the run goes on, or another state takes its place.
    """
    named = layout.parse_mark(key)
    if named is None:
        return _bad(key, "misplaced", "the name is not that of a mark")
    try:
        mark = _parsed(Mark, await _bytes(objects, key, MAX_MARK_BYTES), MAX_MARK_BYTES)
    except KeyMissing:
        return None
    except StoreError as error:
        return _bad(key, "unreadable", error.detail)
    except ValueError as error:
        return _bad(key, "malformed", str(error))
    if (mark.run_id, mark.grade_id) != named:
        return _bad(key, "misplaced", "the mark names another run or grade")
    return ReadResult(mark=mark)


async def result_bytes(objects: ObjectStore, tenant: str, mark: Mark) -> bytes | Finding:
    """Return the bytes of the result that a mark names, as they are, or why there are none."""
    key = layout.result_key(tenant, mark.run_id, mark.grade_id)
    try:
        return await _bytes(objects, key, MAX_RESULT_BYTES)
    except KeyMissing:
        return _finding(key, "missing", "the mark names a result that is not there")
    except StoreError as error:
        return _finding(key, "unreadable", error.detail)
    except ValueError as error:
        return _finding(key, "malformed", str(error))


def checked_result(tenant: str, mark: Mark, data: bytes) -> ReadResult:
    """Return the result in `data` with a finding unless it is the one that the mark names."""
    key = layout.result_key(tenant, mark.run_id, mark.grade_id)
    try:
        result = parse_result(data)
    except ValueError as error:
        return _bad(key, "malformed", str(error), mark)
    if (result.run_id, result.grade_id) != (mark.run_id, mark.grade_id):
        return _bad(key, "misplaced", "the result is of another run or grade", mark)
    if sha256_hex(data) != mark.result_sha256:
        reason = "the bytes are not those that the mark names"
        return _bad(key, "hash_differs", reason, mark, result)
    return ReadResult(mark=mark, result=result)


async def _read(objects: ObjectStore, tenant: str, key: str) -> ReadResult | None:
    read = await read_mark(objects, key)
    if read is None or read.mark is None or read.mark.result_sha256 is None:
        return read
    data = await result_bytes(objects, tenant, read.mark)
    if isinstance(data, Finding):
        return ReadResult(mark=read.mark, finding=data)
    return checked_result(tenant, read.mark, data)


async def _bytes(objects: ObjectStore, key: str, limit: int) -> bytes:
    if await objects.size(key) > limit:
        raise ValueError(f"larger than {limit} bytes")
    return await objects.get(key)


def _parsed(record: type[R], data: bytes, limit: int) -> R:
    if len(data) > limit:
        raise ValueError(f"larger than {limit} bytes")
    try:
        return record.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        what = f"{where}: {first['msg']}" if where else first["msg"]
        raise ValueError(shortened(what, 200)) from error


def _bad(
    key: str,
    kind: FindingKind,
    reason: str,
    mark: Mark | None = None,
    result: RunResult | None = None,
) -> ReadResult:
    return ReadResult(mark=mark, result=result, finding=_finding(key, kind, reason))


def _finding(key: str, kind: FindingKind, reason: str) -> Finding:
    return Finding(key=shortened(key, 1024), kind=kind, reason=shortened(reason, 300))
