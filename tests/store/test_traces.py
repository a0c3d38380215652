"""What a run left in the bucket is read as foreign input: spoilt is told, and counts as absent."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from fde_ray.model.base import canonical_json, sha256_hex
from fde_ray.model.dialogue import DIALOGUE_EVENT
from fde_ray.model.grading import Route, RouteStatus
from fde_ray.model.states import SolveEnd
from fde_ray.store.objects import FolderStore, layout
from fde_ray.store.trace_names import named
from fde_ray.store.traces import MAX_FACTS_BYTES, MAX_LINES_BYTES, read_run, unpacked
from tests.store.builders import GRADE, make_turn, run_id

RUN = run_id(1)
SUBJECT = f"{RUN}.1"
TRY = f"{RUN}/{GRADE}/0.2"
BOX = f"{RUN}/{GRADE}/score.1"
END: dict[str, Any] = {
    "subject": SUBJECT,
    "solve_end": "submitted",
    "failure": None,
    "detail": None,
    "snapshot": None,
    "added_later": 1,
}
CALL: dict[str, Any] = {
    "call_id": "c1",
    "try_no": 1,
    "subject": SUBJECT,
    "run_id": RUN,
    "grade_id": None,
    "role": "agent",
    "model": "m",
    "request_hash": "",
    "price_hash": "",
    "started_at": 1.0,
    "finished_at": 2.0,
    "state": "finished",
    "status": 200,
    "detail": None,
    "usage": {"prompt_tokens": 1},
    "cost_nanousd": 5,
    "cost_reason": None,
    "model_returned": None,
    "offline": False,
    "reply": None,
}


@pytest.fixture
def objects(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path)


def make_route(number: int) -> Route:
    return Route(route=number, model="m", status=RouteStatus.SUCCESS, vote=0.5)


async def put(objects: FolderStore, key: str, value: Any) -> None:
    data = value if isinstance(value, bytes) else canonical_json(value).encode()
    assert await objects.create(key, data)


def packed_calls(*calls: dict[str, Any]) -> bytes:
    return gzip.compress(b"".join(canonical_json(call).encode() + b"\n" for call in calls))


async def test_a_run_that_left_nothing_has_an_empty_trace(objects: FolderStore) -> None:
    trace = await read_run(objects, "local", RUN)
    assert (trace.attempts, trace.tries, trace.grades, trace.findings) == ((), (), {}, ())


async def test_sessions_are_read_with_their_calls_and_dialogue(objects: FolderStore) -> None:
    await put(objects, layout.end_key("local", SUBJECT), END)
    await put(objects, layout.calls_key("local", SUBJECT, "all", 0), packed_calls(CALL))
    line = DIALOGUE_EVENT.dump_json(make_turn(1).evolve(seq=1)) + b"\n"
    await put(objects, layout.dialogue_key("local", SUBJECT), line)
    await put(
        objects, layout.start_key("local", TRY), {"subject": TRY, "at": "2026-01-01T00:00:00Z"}
    )
    await put(objects, layout.end_key("local", BOX), END | {"subject": BOX})
    trace = await read_run(objects, "local", RUN)
    (attempt,), (one_try,), (box,) = trace.attempts, trace.tries, trace.boxes
    assert trace.sessions == (attempt, one_try, box)
    assert (box.subject, box.grade_id, box.route, box.number) == (BOX, GRADE, None, 1)
    assert attempt.end is not None
    assert (attempt.number, attempt.end.solve_end) == (1, SolveEnd.SUBMITTED)
    assert [call.call_id for call in attempt.calls] == ["c1"]
    assert (len(attempt.events), attempt.is_collected) == (1, True)
    assert (one_try.grade_id, one_try.route, one_try.number) == (GRADE, 0, 2)
    assert one_try.started_at == 1_767_225_600
    assert (one_try.end, one_try.is_collected, trace.findings) == (None, False, ())


ENDS: dict[str, tuple[Any, str]] = {
    "empty": (b"", "malformed"),
    "no_json": (b"{", "malformed"),
    "deep": (b"[" * 100_000, "malformed"),
    "no_text": (b"\xff", "malformed"),
    "a_list": ([1], "malformed"),
    "missing_fields": ({"subject": SUBJECT}, "malformed"),
    "another_session": (END | {"subject": f"{RUN}.2"}, "misplaced"),
    "unknown_end": (END | {"solve_end": "escaped"}, "malformed"),
    "bad_snapshot": (END | {"snapshot": "../../other"}, "malformed"),
    "no_such_snapshot": (END | {"snapshot": "final"}, "missing"),
    "infinite_clock": (b'{"session": {"started_at": Infinity}}', "malformed"),
    "huge": (b" " * (MAX_FACTS_BYTES + 1), "malformed"),
}


@pytest.mark.parametrize("name", ENDS)
async def test_a_spoilt_end_is_told_and_nothing_is_graded_from_it(
    objects: FolderStore, name: str
) -> None:
    value, kind = ENDS[name]
    await put(objects, layout.end_key("local", SUBJECT), value)
    trace = await read_run(objects, "local", RUN)
    assert [finding.kind for finding in trace.findings] == [kind]
    assert not trace.attempts[0].is_collected


CALLS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "malformed"),
    "no_gzip": (b"plain text", "malformed"),
    "cut_short": (packed_calls(CALL)[:-9], "malformed"),
    "no_json": (gzip.compress(b"{\n"), "malformed"),
    "another_session": (packed_calls(CALL | {"subject": f"{RUN}.9"}), "misplaced"),
    "another_run": (packed_calls(CALL | {"run_id": run_id(2)}), "misplaced"),
    "a_number_beyond_all_columns": (packed_calls(CALL | {"cost_nanousd": 10**30}), "malformed"),
    "a_bomb": (gzip.compress(b"\0" * (MAX_LINES_BYTES + 1), 9), "malformed"),
}


@pytest.mark.parametrize("name", CALLS)
async def test_spoilt_calls_are_told_and_the_session_stays(objects: FolderStore, name: str) -> None:
    data, kind = CALLS[name]
    await put(objects, layout.end_key("local", SUBJECT), END)
    await put(objects, layout.calls_key("local", SUBJECT, "all", 0), data)
    trace = await read_run(objects, "local", RUN)
    assert [finding.kind for finding in trace.findings] == [kind]
    assert trace.attempts[0].calls == ()
    assert trace.attempts[0].is_collected


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b'{"event":"turn"}\n',
        DIALOGUE_EVENT.dump_json(make_turn(1).evolve(seq=2)) + b"\n",
        b"\xff\n",
    ],
    ids=["no_json", "no_event", "begins_at_two", "no_text"],
)
async def test_a_spoilt_dialogue_keeps_its_session_from_being_graded(
    objects: FolderStore, data: bytes
) -> None:
    await put(objects, layout.end_key("local", SUBJECT), END)
    await put(objects, layout.dialogue_key("local", SUBJECT), data)
    trace = await read_run(objects, "local", RUN)
    assert [finding.kind for finding in trace.findings] == ["malformed"]
    assert trace.attempts[0].events == ()
    assert not trace.attempts[0].is_collected


async def test_finds_of_a_grading_count_when_sound_and_alone(objects: FolderStore) -> None:
    sound = make_route(0).model_dump_json().encode()
    other = make_route(1).model_dump_json().encode()

    def key(route: int, data: bytes) -> str:
        return layout.extraction_key("local", RUN, GRADE, route, sha256_hex(data), "route.json")

    await put(objects, key(0, sound), sound)
    await put(objects, key(1, sound), sound)
    await put(objects, key(1, other), other)
    await put(objects, key(2, sound), other)
    await put(objects, key(3, b"{"), b"{")
    await put(objects, layout.judging_key("local", RUN, GRADE, "panel", sha256_hex(b"[]")), b"[]")
    grade = (await read_run(objects, "local", RUN)).grades[GRADE]
    assert [route.route for _, route in grade.routes] == [0]
    assert grade.coverage is not None
    trace = await read_run(objects, "local", RUN)
    assert sorted(f.kind for f in trace.findings) == ["hash_differs", "malformed"]


async def test_two_verdicts_of_one_grade_are_made_again(objects: FolderStore) -> None:
    for data in (b"[]", b"[ ]"):
        key = layout.judging_key("local", RUN, GRADE, "panel", sha256_hex(data))
        await put(objects, key, data)
    assert (await read_run(objects, "local", RUN)).grades[GRADE].coverage is None


async def test_a_result_of_another_run_is_misplaced(objects: FolderStore) -> None:
    await put(objects, layout.result_key("local", RUN, GRADE), json.loads("{}"))
    trace = await read_run(objects, "local", RUN)
    assert [finding.kind for finding in trace.findings] == ["malformed"]
    assert trace.grades[GRADE].result is None


def test_names_that_are_no_ours_are_left_out() -> None:
    names = ["attempts/x/end.json", "attempts/01/end.json", f"attempts/{'9' * 20}/end.json"]
    names += ["attempts/", "grades/zz/result.json", "grades/../result.json", "other", ""]
    names += [f"grades/{GRADE}/-1.1/end.json", f"grades/{GRADE}/0.0x1/end.json"]
    names += [f"grades/{GRADE}/score.x/end.json", f"grades/{GRADE}/scores.1/end.json"]
    assert all(not found for found in named("p/", [f"p/{name}" for name in names]))


def test_a_gzip_member_is_unpacked_up_to_a_limit() -> None:
    assert unpacked(gzip.compress(b"abc"), 3) == b"abc"
    with pytest.raises(ValueError, match="larger than 2"):
        unpacked(gzip.compress(b"abc"), 2)
