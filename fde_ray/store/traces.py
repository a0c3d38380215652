"""What a run left in the bucket, read as foreign input: sessions, their ends, dialogue and calls.

A malformed, oversized or misplaced object becomes a `Finding` and counts as absent.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import AwareDatetime, ConfigDict, Field, TypeAdapter, ValidationError

from fde_ray.model.base import Record, sha256_hex
from fde_ray.model.boxes import BOX_ROLES, box_line, box_owner, box_subject, line_of
from fde_ray.model.dialogue import DIALOGUE_EVENT, DialogueEvent
from fde_ray.model.errors import StoreError, shortened
from fde_ray.model.failures import FailureKind
from fde_ray.model.grading import PointCoverage, Route
from fde_ray.model.result import Pause, RunResult
from fde_ray.model.session import AgentExit, Commit, SessionRole
from fde_ray.model.states import SolveEnd

from .errors import KeyMissing
from .objects import ObjectStore, layout
from .results import MAX_RESULT_BYTES, Finding, FindingKind, parse_result
from .runs.rows import CallRow
from .trace_names import Names, named

T = TypeVar("T")

MAX_FACTS_BYTES = 4 * 2**20
MAX_LINES_BYTES = 64 * 2**20
"""Of a dialogue, and of a file of calls once unpacked."""
MAX_SESSIONS = 10_000

_POSTED = re.compile(r"events/(0|[1-9]\d{0,8})\.jsonl\.gz")
_NOTE = re.compile(r"notes/\d{9}\.json")
_CALLS = re.compile(r"calls/[A-Za-z0-9._-]{1,100}\.jsonl\.gz")
_COVERAGES: TypeAdapter[tuple[PointCoverage, ...]] = TypeAdapter(tuple[PointCoverage, ...])


class _Read(Record):
    """A document that later programs may have added to."""

    model_config = ConfigDict(extra="ignore")


class SessionFacts(_Read):
    """Of `end.json`: what the row of a closed session held."""

    started_at: float
    agent_started_at: float | None
    solve_ended_at: float | None
    ended_at: float | None
    first_score_sha: str | None = None
    exit: AgentExit | None = None
    pauses: tuple[Pause, ...] = ()


class SessionEnd(_Read):
    """`end.json`. session None = written by a program that did not keep it."""

    subject: str
    solve_end: SolveEnd | None
    failure: FailureKind | None
    detail: str | None
    snapshot: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")] | None
    session: SessionFacts | None = None


class SessionNote(_Read):
    """`notes/<n>.json`: how far a session was at a moment between two turns."""

    subject: str
    at: float
    session: SessionFacts
    events: tuple[DialogueEvent, ...]

    @property
    def turns(self) -> int:
        return sum(event.event == "replied" for event in self.events)


class _Call(_Read):
    """A line of `calls/*.jsonl.gz`."""

    call_id: str = Field(min_length=1, max_length=1000)
    try_no: int = Field(ge=0, lt=2**31)
    subject: str
    run_id: str
    grade_id: str | None
    role: str
    model: str
    request_hash: str
    price_hash: str
    started_at: float
    finished_at: float | None
    state: Literal["started", "finished", "failed", "ambiguous"]
    status: int | None = Field(ge=0, lt=2**31)
    detail: str | None
    usage: dict[str, Any] | None
    cost_nanousd: int | None = Field(ge=-(2**63), lt=2**63)
    cost_reason: str | None
    model_returned: str | None
    offline: bool
    model_asked: str | None = None
    replica: str | None = None
    reserved_nanousd: int | None = Field(default=None, ge=0, lt=2**63)
    owners: str | None = None
    shrunk_to: int | None = Field(default=None, ge=1, lt=2**63)
    raw_usage: dict[str, Any] | None = None
    finish_reason: str | None = None


class _Start(_Read):
    """`start.json`."""

    subject: str
    at: AwareDatetime


class SessionTrace(NamedTuple):
    """What one session left. end None = it was alive when it was last heard of, or its end was
    spoilt; grade and route are those of an extraction try, a box has a grade alone."""

    subject: str
    number: int
    started_at: float | None
    grade_id: str | None
    route: int | None
    end: SessionEnd | None
    commit: Commit | None
    events: tuple[DialogueEvent, ...]
    calls: tuple[CallRow, ...]
    is_sound: bool
    """All but the calls could be read; else nothing may be graded from it."""
    note: SessionNote | None = None
    """The last one, of a session without an end."""
    posted: int | None = None
    """Turns that its shim noted before it posted them; None = it noted none, not even the first."""

    @property
    def role(self) -> SessionRole:
        if self.grade_id is None:
            return "solve"
        line = line_of(self.subject)
        return next((role for role in BOX_ROLES if line.endswith(f"/{role}")), "extract")

    @property
    def is_collected(self) -> bool:
        """Whether it may be graded from what it left."""
        if self.end is None or not self.is_sound or self.end.failure is not None:
            return False
        return self.end.solve_end is not None and self.end.solve_end.is_graded


class GradeTrace(NamedTuple):
    """What was made of one grade. routes, coverage: keys of finds that are sound and alone in
    their place, so that there is no doubt which one counted."""

    result: RunResult | None
    sha256: str | None
    routes: tuple[tuple[str, Route], ...]
    coverage: str | None


class RunTrace(NamedTuple):
    run_id: str
    attempts: tuple[SessionTrace, ...]
    """In the order of their numbers."""
    tries: tuple[SessionTrace, ...]
    boxes: tuple[SessionTrace, ...]
    grades: dict[str, GradeTrace]
    findings: tuple[Finding, ...]

    @property
    def sessions(self) -> tuple[SessionTrace, ...]:
        return self.attempts + self.tries + self.boxes


async def read_run(objects: ObjectStore, tenant: str, run_id: str) -> RunTrace:
    """Return what the bucket tells of a run; raises StoreError only when the bucket is away."""
    return await _Reader(objects, tenant, run_id).read()


class _Reader:
    def __init__(self, objects: ObjectStore, tenant: str, run_id: str) -> None:
        self._objects, self._tenant, self._run = objects, tenant, run_id
        self._findings: list[Finding] = []

    async def read(self) -> RunTrace:
        prefix = layout.run_prefix(self._tenant, self._run)
        names = named(prefix, await self._objects.list(prefix))
        attempts = [
            await self._session(f"{self._run}.{number}", number, None, None, inner)
            for number, inner in sorted(names.attempts.items())[:MAX_SESSIONS]
        ]
        tries = [
            await self._session(
                f"{self._run}/{grade}/{route}.{number}", number, grade, route, inner
            )
            for (grade, route, number), inner in sorted(names.tries.items())[:MAX_SESSIONS]
        ]
        boxes = [
            await self._session(
                box_subject(box_line(box_owner(self._run, grade), role), number),
                *(number, grade, None, inner),
            )
            for (grade, role, number), inner in sorted(names.boxes.items())[:MAX_SESSIONS]
        ]
        grades = {
            grade: await self._grade(grade, names)
            for grade in sorted({*names.results, *names.coverages, *(g for g, _ in names.routes)})
        }
        sessions = tuple(attempts), tuple(tries), tuple(boxes)
        return RunTrace(self._run, *sessions, grades, tuple(self._findings))

    async def _session(
        self, subject: str, number: int, grade: str | None, route: int | None, names: Sequence[str]
    ) -> SessionTrace:
        before = len(self._findings)
        end = await self._end(subject) if "end.json" in names else None
        commit = None
        if end is not None and end.snapshot is not None:
            commit = await self._manifest(subject, end.snapshot)
        events = await self._dialogue(subject) if "dialogue.jsonl" in names else ()
        is_sound = len(self._findings) == before
        note = await self._note(subject, names) if "end.json" not in names else None
        prefix = layout.attempt_prefix(self._tenant, subject)
        calls = [
            call
            for name in sorted(names)
            if _CALLS.fullmatch(name)
            for call in await self._calls(prefix + name, subject)
        ]
        calls = once_each(calls)
        started_at = await self._started(subject) if "start.json" in names else None
        return SessionTrace(
            subject,
            number,
            started_at,
            grade,
            route,
            end,
            commit,
            events,
            tuple(calls),
            is_sound,
            note,
            posted=max(
                (int(m[1]) for name in names if (m := _POSTED.fullmatch(name))), default=None
            ),
        )

    async def _note(self, subject: str, names: Sequence[str]) -> SessionNote | None:
        latest = max((name for name in names if _NOTE.fullmatch(name)), default=None)
        if latest is None:
            return None
        key = layout.attempt_prefix(self._tenant, subject) + latest
        note = await self._record(key, SessionNote, MAX_LINES_BYTES)
        if note is None:
            return None
        in_order = [event.seq for event in note.events] == list(range(1, len(note.events) + 1))
        is_whole = in_order and (not note.events or note.events[-1].event == "replied")
        if note.subject != subject or not is_whole or note.session.agent_started_at is None:
            self._found(key, "misplaced", "it is no note of this session at work")
            return None
        return note

    async def _started(self, subject: str) -> float | None:
        start = await self._record(layout.start_key(self._tenant, subject), _Start, MAX_FACTS_BYTES)
        return None if start is None else start.at.timestamp()

    async def _end(self, subject: str) -> SessionEnd | None:
        key = layout.end_key(self._tenant, subject)
        end = await self._record(key, SessionEnd, MAX_FACTS_BYTES)
        if end is not None and end.subject != subject:
            self._found(key, "misplaced", "it is the end of another session")
            return None
        return end

    async def _manifest(self, subject: str, snapshot: str) -> Commit | None:
        key = layout.manifest_key(self._tenant, subject, snapshot)
        commit = await self._record(key, Commit, MAX_LINES_BYTES)
        if commit is not None and commit.snapshot != snapshot:
            self._found(key, "misplaced", "it is the manifest of another snapshot")
            return None
        return commit

    async def _dialogue(self, subject: str) -> tuple[DialogueEvent, ...]:
        key = layout.dialogue_key(self._tenant, subject)
        data = await self._bytes(key, MAX_LINES_BYTES)
        if data is None:
            return ()
        try:
            events = [DIALOGUE_EVENT.validate_json(line) for line in data.splitlines() if line]
            if [event.seq for event in events] != list(range(1, len(events) + 1)):
                raise ValueError("its events are not numbered from 1 on")
        except ValueError as error:
            self._found(key, "malformed", _said(error))
            return ()
        return tuple(events)

    async def _calls(self, key: str, subject: str) -> list[CallRow]:
        data = await self._bytes(key, MAX_LINES_BYTES)
        if data is None:
            return []
        try:
            lines = unpacked(data, MAX_LINES_BYTES).splitlines()
            calls = [_Call.model_validate_json(line) for line in lines if line]
        except ValueError as error:
            self._found(key, "malformed", _said(error))
            return []
        if any(call.subject != subject or call.run_id != self._run for call in calls):
            self._found(key, "misplaced", "it holds calls of another session")
            return []
        return [CallRow(**{**call.model_dump(), "reply": None}) for call in calls]

    async def _grade(self, grade: str, names: Names) -> GradeTrace:
        result, sha256 = None, None
        if (key := names.results.get(grade)) is not None:
            result, sha256 = await self._result(key, grade)
        routes = []
        for (of, _), found in sorted(names.routes.items()):
            if of == grade and (route := await self._alone(found)) is not None:
                routes.append(route)
        coverage = await self._coverage(names.coverages.get(grade, []))
        return GradeTrace(result, sha256, tuple(routes), coverage)

    async def _result(self, key: str, grade: str) -> tuple[RunResult, str] | tuple[None, None]:
        data = await self._bytes(key, MAX_RESULT_BYTES)
        if data is None:
            return None, None
        try:
            result = parse_result(data)
        except ValueError as error:
            self._found(key, "malformed", _said(error))
            return None, None
        if (result.run_id, result.grade_id) != (self._run, grade):
            self._found(key, "misplaced", "the result is of another run or grade")
            return None, None
        return result, sha256_hex(data)

    async def _alone(self, found: Sequence[tuple[str, str]]) -> tuple[str, Route] | None:
        if len(found) != 1:
            return None
        key, sha256 = found[0]
        data = await self._bytes(key, MAX_RESULT_BYTES)
        if data is None or not self._is_named(key, data, sha256):
            return None
        try:
            return key, Route.model_validate_json(data)
        except ValueError as error:
            self._found(key, "malformed", _said(error))
            return None

    async def _coverage(self, found: Sequence[tuple[str, str]]) -> str | None:
        if len(found) != 1:
            return None
        key, sha256 = found[0]
        data = await self._bytes(key, MAX_RESULT_BYTES)
        if data is None or not self._is_named(key, data, sha256):
            return None
        try:
            _COVERAGES.validate_json(data)
        except ValueError as error:
            self._found(key, "malformed", _said(error))
            return None
        return key

    def _is_named(self, key: str, data: bytes, sha256: str) -> bool:
        if sha256_hex(data) == sha256:
            return True
        self._found(key, "hash_differs", "the bytes are not those that the key names")
        return False

    async def _record(self, key: str, record: type[RecordT], limit: int) -> RecordT | None:
        data = await self._bytes(key, limit)
        if data is None:
            return None
        try:
            return record.model_validate_json(data)
        except ValueError as error:
            self._found(key, "malformed", _said(error))
            return None

    async def _bytes(self, key: str, limit: int) -> bytes | None:
        try:
            if await self._objects.size(key) > limit:
                self._found(key, "malformed", f"larger than {limit} bytes")
                return None
            return await self._objects.get(key)
        except KeyMissing:
            self._found(key, "missing", "it was listed and is gone")
            return None

    def _found(self, key: str, kind: FindingKind, reason: str) -> None:
        self._findings.append(
            Finding(key=shortened(key, 1024), kind=kind, reason=shortened(reason, 300))
        )


RecordT = TypeVar("RecordT", bound=Record)


_CERTAINTY = {"started": 0, "ambiguous": 1, "failed": 2, "finished": 2}


def once_each(calls: Sequence[CallRow]) -> list[CallRow]:
    """Return each try once, as its latest row says: parts of replicas and the whole overlap."""
    found: dict[tuple[str, int], CallRow] = {}
    for call in calls:
        key = (call.call_id, call.try_no)
        known = found.get(key)
        if known is None or _CERTAINTY[known.state] < _CERTAINTY[call.state]:
            found[key] = call
    return list(found.values())


def unpacked(data: bytes, limit: int) -> bytes:
    """Return the content of one gzip member; ValueError when it is spoilt or above `limit`."""
    machine = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        content = machine.decompress(data, limit + 1)
    except zlib.error as error:
        raise ValueError(f"no gzip: {error}") from error
    if len(content) > limit:
        raise ValueError(f"larger than {limit} bytes when unpacked")
    if not machine.eof:
        raise ValueError("the gzip stream is cut short")
    return content


def _said(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return shortened(str(error), 200)
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return shortened(f"{where}: {first['msg']}" if where else first["msg"], 200)


__all__ = [
    "GradeTrace",
    "RunTrace",
    "SessionEnd",
    "SessionFacts",
    "SessionTrace",
    "StoreError",
    "read_run",
]
