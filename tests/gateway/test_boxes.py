"""Programs of a grade on their way to its box: what the grade-plane hands out, and to whom."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fde_ray.gateway.boxes import LOOK_EVERY_S
from fde_ray.gateway.messages import Heartbeat, TurnRequest
from fde_ray.model.boxes import BoxJob, BoxResult, box_subject
from fde_ray.model.errors import Refusal
from fde_ray.model.session import Commit, Part
from fde_ray.model.states import Channel, Scope, SolveEnd
from fde_ray.store.objects import layout
from fde_ray.store.runs import RunStore
from tests.gateway.boxes import BOX, LINE, PROGRAMS, began, program
from tests.gateway.planes import EXTRACT, SOLVE, Bench
from tests.store.builders import make_commit

OTHER = box_subject(LINE, 2)
SEALED = layout.case_key("local", "sealed", "5" * 64)
DONE = BoxResult(reason="exit", exit_code=0, stdout=b"{}\n", duration_s=0.1)


async def chunks(bench: Bench, token: str, job_id: str, number: int) -> bytes:
    found = await bench.plane.boxes.folder(token, job_id, number)
    return b"".join([chunk async for chunk in found])


async def code_of(call: Any) -> str:
    with pytest.raises(Refusal) as caught:
        await call
    return caught.value.code


async def test_a_box_gets_a_program_with_its_folders_and_tells_its_end(bench: Bench) -> None:
    token = await began(bench)
    await bench.objects.create(SEALED, b"sealed")
    await bench.store.ask_box("j1", LINE, program(SEALED), 60.0)
    reply = await bench.plane.boxes.next(token)
    assert (reply.job_id, reply.job) == ("j1", program(SEALED))
    assert await chunks(bench, token, "j1", 0) == b"sealed"
    await bench.plane.boxes.end(token, "j1", DONE)
    await bench.plane.boxes.end(token, "j1", DONE)
    assert await bench.store.job_result("j1") == DONE
    assert await code_of(bench.plane.boxes.folder(token, "j1", 0)) == "no_job"


async def test_a_workspace_comes_joined_from_its_parts(bench: Bench) -> None:
    token = await began(bench)
    parts = tuple(Part(seq=n, sha256=str(n) * 64, size=1) for n in range(2))
    for part in parts:
        key = layout.part_key("local", SOLVE, "final", part.seq, part.sha256)
        await bench.objects.create(key, b"%d" % part.seq)
    commit: Commit = make_commit(*parts)
    manifest = layout.manifest_key("local", SOLVE, "final")
    await bench.objects.create(manifest, commit.model_dump_json().encode())
    await bench.store.ask_box("j1", LINE, program(manifest), 60.0)
    await bench.plane.boxes.next(token)
    assert await chunks(bench, token, "j1", 0) == b"01"


async def test_a_box_waits_for_a_program_and_is_woken(bench: Bench) -> None:
    token = await began(bench)
    waiting = asyncio.create_task(bench.plane.boxes.next(token, 30.0))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await bench.store.ask_box("j1", LINE, program(), 60.0)
    assert (await asyncio.wait_for(waiting, 5.0)).job_id == "j1"


async def test_a_program_that_another_process_wants_is_seen_soon(
    bench: Bench, tmp_path: Path
) -> None:
    token = await began(bench)
    watching = asyncio.create_task(bench.plane.boxes.watch())
    waiting = asyncio.create_task(bench.plane.boxes.next(token, 30.0))
    await asyncio.sleep(0.05)
    async with RunStore(tmp_path / "runs.db", bench.clock) as elsewhere:
        await elsewhere.ask_box("j1", LINE, program(), 60.0)
    assert (await asyncio.wait_for(waiting, LOOK_EVERY_S + 5.0)).job_id == "j1"
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_nothing_comes_in_time_and_the_reply_is_empty(bench: Bench) -> None:
    token = await began(bench)
    reply = await bench.plane.boxes.next(token, 0.01)
    assert (reply.job_id, reply.job) == (None, None)


async def test_a_box_that_is_closed_while_it_waits_is_let_go_and_gets_nothing_more(
    bench: Bench,
) -> None:
    token = await began(bench)
    waiting = asyncio.create_task(bench.plane.boxes.next(token, 30.0))
    await asyncio.sleep(0.05)
    await bench.store.close_attempt(BOX, bench.epoch, solve_end=SolveEnd.SUBMITTED)
    assert (await asyncio.wait_for(waiting, 5.0)).job is None
    assert await code_of(bench.plane.boxes.next(token, 0.0)) == "not_live"
    assert await code_of(bench.plane.boxes.end(token, "j1", DONE)) == "not_live"


async def test_a_plane_that_leaves_lets_its_boxes_go(bench: Bench) -> None:
    token = await began(bench)
    waiting = asyncio.create_task(bench.plane.boxes.next(token, 30.0))
    await asyncio.sleep(0.05)
    bench.plane.leave()
    assert (await asyncio.wait_for(waiting, 5.0)).job is None
    assert (await bench.plane.boxes.next(token, 30.0)).job is None


async def test_sealed_folders_are_out_of_reach_of_agents_and_extractors(bench: Bench) -> None:
    box = await began(bench)
    await bench.objects.create(SEALED, b"sealed")
    await bench.store.ask_box("j1", LINE, program(SEALED), 60.0)
    await bench.plane.boxes.next(box)
    for subject in (SOLVE, EXTRACT):
        token = await bench.started(subject)
        assert await code_of(bench.plane.boxes.next(token, 0.0)) == "wrong_scope"
        assert await code_of(bench.plane.boxes.folder(token, "j1", 0)) == "wrong_scope"
        assert await code_of(bench.plane.boxes.end(token, "j1", DONE)) == "wrong_scope"
        for name in ("sealed", SEALED, "j1"):
            assert await code_of(bench.plane.archive(token, name)) == "unknown_archive"


async def test_a_box_may_do_nothing_that_agents_may(bench: Bench) -> None:
    token, plane = await began(bench), bench.plane
    turn = TurnRequest(turn_no=1, channel=Channel.TEXT, text="x", has_deliverable=False)
    assert await code_of(plane.inputs(token)) == "wrong_scope"
    assert await code_of(plane.archive(token, "sealed")) == "wrong_scope"
    assert await code_of(plane.models(token)) == "wrong_scope"
    assert await code_of(plane.post_turn(token, turn)) == "wrong_scope"
    assert await code_of(plane.evaluate(token, b"")) == "wrong_scope"
    assert await code_of(plane.commit(token, make_commit())) == "wrong_scope"
    assert (await plane.heartbeat(token, Heartbeat())).state == "run"


@pytest.mark.parametrize("scope", [Scope.SOLVE, Scope.COLLECT, Scope.EXTRACT, Scope.EXEC])
async def test_a_box_gets_a_token_of_its_own_scope_only(bench: Bench, scope: Scope) -> None:
    await began(bench)
    assert await code_of(bench.token(BOX, scope)) == "wrong_scope"
    for subject in (SOLVE, EXTRACT):
        assert await code_of(bench.token(subject, Scope.SCORE)) == "wrong_scope"
        assert await code_of(bench.token(subject, Scope.EXEC)) == "wrong_scope"


async def test_a_box_has_no_part_in_what_another_one_took(bench: Bench) -> None:
    first, second = await began(bench), await began(bench, OTHER)
    await bench.objects.create(SEALED, b"sealed")
    await bench.store.ask_box("j1", LINE, program(SEALED), 60.0)
    await bench.plane.boxes.next(first)
    assert await code_of(bench.plane.boxes.folder(second, "j1", 0)) == "no_job"
    assert await code_of(bench.plane.boxes.end(second, "j1", DONE)) == "no_job"
    assert (await bench.plane.boxes.next(second, 0.0)).job is None


async def test_a_box_of_agents_programs_sees_nothing_that_graders_see(bench: Bench) -> None:
    ours, its = await began(bench), await began(bench, box_subject(PROGRAMS, 1), "exec")
    await bench.objects.create(SEALED, b"sealed")
    await bench.store.ask_box("j1", LINE, program(SEALED), 60.0)
    assert (await bench.plane.boxes.next(its, 0.0)).job is None
    await bench.plane.boxes.next(ours)
    assert await code_of(bench.plane.boxes.folder(its, "j1", 0)) == "no_job"
    assert await code_of(bench.plane.boxes.end(its, "j1", DONE)) == "no_job"
    for name in ("sealed", SEALED, "j1"):
        assert await code_of(bench.plane.archive(its, name)) == "wrong_scope"
    await bench.store.ask_box("j2", PROGRAMS, program(), 60.0)
    assert (await bench.plane.boxes.next(its)).job_id == "j2"


async def test_a_folder_that_is_gone_is_said_to_be(bench: Bench) -> None:
    token = await began(bench)
    gone = layout.manifest_key("local", SOLVE, "gone")
    await bench.store.ask_box("j1", LINE, program(gone, SEALED), 60.0)
    await bench.plane.boxes.next(token)
    async with bench.client(token, grade=True) as client:
        for number in (0, 1):
            reply = await client.get(f"/v1/job/j1/folders/{number}")
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "no_object")
        assert (await client.get("/v1/job/j1/folders/2")).json()["error"]["code"] == "no_job"


async def test_the_routes_are_the_grade_plane_s_alone(bench: Bench) -> None:
    token = await began(bench)
    await bench.store.ask_box("j1", LINE, program(), 60.0)
    async with bench.client(token) as run_plane:
        assert (await run_plane.get("/v1/job")).status_code == 404
    async with bench.client(token, grade=True) as client:
        reply = await client.get("/v1/job?wait_s=1")
        assert reply.status_code == 200
        assert BoxJob.model_validate_json(json.dumps(reply.json()["job"])) == program()
        ended = await client.post("/v1/job/j1", content=DONE.model_dump_json())
        assert (ended.status_code, ended.json()) == (200, {})
        empty = await client.get("/v1/job")
        assert (empty.status_code, empty.json()) == (202, {"job_id": None, "job": None})


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"null", 422),
        (b"[]", 422),
        (b"{}", 422),
        (b"\xff\x00", 422),
        (b"[" * 100_000, 422),
        (b'{"reason": "won"}', 422),
        (b'{"reason": "exit", "exit_code": 1e400}', 422),
        (b'{"reason": "exit", "exit_code": 256}', 422),
        (b'{"reason": "exit", "stdout": "no base64!"}', 422),
        (b'{"reason": "exit", "duration_s": -1}', 422),
        (b'{"reason": "exit", "duration_s": NaN}', 422),
        (b'{"reason": "exit", "score": 1}', 422),
        (json.dumps({"reason": "exit", "stdout": "QUFB" * (1 << 20)}).encode(), 422),
        (json.dumps({"reason": "lost", "detail": "x" * 501}).encode(), 422),
        (b'"' + b"x" * (7 << 20) + b'"', 413),
    ],
    ids=range(16),
)
async def test_a_result_that_is_none_is_refused(bench: Bench, body: bytes, status: int) -> None:
    token = await began(bench)
    await bench.store.ask_box("j1", LINE, program(), 60.0)
    await bench.plane.boxes.next(token)
    async with bench.client(token, grade=True) as client:
        reply = await client.post("/v1/job/j1", content=body)
    assert reply.status_code == status
    assert reply.json()["error"]["fault"] == "agent"
    assert await bench.store.job_result("j1") is None


@pytest.mark.parametrize("name", ["..", "%2e%2e", "a%2fb", "%00", "x" * 65, "\u00e9", "a.b"])
async def test_a_name_that_is_none_is_refused(bench: Bench, name: str) -> None:
    token = await began(bench)
    async with bench.client(token, grade=True) as client:
        for reply in (
            await client.post(f"/v1/job/{name}", content=DONE.model_dump_json()),
            await client.get(f"/v1/job/{name}/folders/0"),
            await client.get(f"/v1/job/j1/folders/{name}"),
        ):
            assert reply.status_code in (400, 404, 405)


async def test_nobody_without_a_token_is_listened_to(bench: Bench) -> None:
    async with bench.client(grade=True) as client:
        assert (await client.get("/v1/job")).status_code == 401
        assert (await client.get("/v1/job/j1/folders/0")).status_code == 401
        assert (await client.post("/v1/job/j1", content=b"x" * 100)).status_code == 401
