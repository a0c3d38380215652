"""Rows and bucket that disagree, after a restore or a death: `result.json` wins, else the row."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fde_ray.engine.controller import Controller
from fde_ray.engine.reconciliation import Ruling, highest_attempt, ruling, written
from fde_ray.model.base import sha256_hex
from fde_ray.model.result import canonical
from fde_ray.model.states import GradeState, Phase
from fde_ray.store.objects import layout
from tests.engine.drivers import make_spec, make_stage, marks, opened, result, submitted, worked
from tests.engine.stage import Agent
from tests.engine.virtual import played

A, B = "a" * 64, "b" * 64
RULINGS = {
    "no_object": (GradeState.PENDING, A, None, Ruling.ROW),
    "no_object_of_a_scored_row": (GradeState.SCORED, A, None, Ruling.ROW),
    "the_row_knows_it": (GradeState.SCORED, A, A, Ruling.ROW),
    "begun_and_written": (GradeState.PENDING, A, A, Ruling.OBJECT),
    "never_begun": (GradeState.PENDING, None, A, Ruling.OBJECT),
    "given_up": (GradeState.GRADE_MISSING, None, A, Ruling.OBJECT),
    "other_bytes": (GradeState.PENDING, A, B, Ruling.INCIDENT),
    "other_bytes_of_a_scored_row": (GradeState.NO_MAJORITY, A, B, Ruling.INCIDENT),
}


@pytest.mark.parametrize("name", RULINGS)
def test_a_result_wins_once_there_and_elsewhere_the_row(name: str) -> None:
    grade, row_sha, object_sha, expected = RULINGS[name]
    assert ruling(grade, row_sha, object_sha) is expected


@contextmanager
def rows_of(home: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(home / "runs.sqlite")) as rows:
        yield rows
        rows.commit()


def test_a_dead_owners_result_is_made_official_without_grading_again(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        async with opened(tmp_path, stage) as runtime:
            (status,) = await worked(runtime, await submitted(runtime, make_spec()))
            before = canonical(await result(runtime))
        with rows_of(tmp_path) as rows:
            rows.execute("UPDATE runs SET phase = 'committing', ended_at = NULL")
            rows.execute("UPDATE grades SET state = 'pending', score = NULL, progress = NULL")
        started = list(stage.started)
        async with opened(tmp_path, stage) as runtime:
            (status,) = await worked(runtime, ["small"])
            assert status.is_complete
            assert canonical(await result(runtime)) == before
            assert stage.started == started

    played(main)


def test_a_store_restored_from_before_the_end_takes_the_results_that_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        stage, home = make_stage(), tmp_path / "home"
        async with opened(home, stage) as runtime:
            await submitted(runtime, make_spec(repeats=2))
        shutil.copy(home / "runs.sqlite", tmp_path / "backup.sqlite")
        async with opened(home, stage) as runtime:
            await worked(runtime, ["small"])
        for name in ("runs.sqlite", "runs.sqlite-wal", "runs.sqlite-shm"):
            (home / name).unlink(missing_ok=True)
        shutil.copy(tmp_path / "backup.sqlite", home / "runs.sqlite")
        started = list(stage.started)
        async with opened(home, stage) as runtime:
            await runtime.store.raise_incarnation()
            (status,) = await worked(runtime, ["small"])
            assert status.is_complete
            assert stage.started == started
            assert {run.solve_end for run in status.runs} == {"submitted"}
            for run in status.runs:
                key = layout.result_key("local", run.run_id, run.grade_id)
                assert run.commit_sha == sha256_hex(await runtime.objects.get(key))
            assert set((await marks(runtime)).values()) == {("done", "scored")}

    with caplog.at_level(logging.ERROR):
        played(main)
    assert [one.message for one in caplog.records].count("result_differs") == 2


def test_a_store_restored_from_before_an_attempt_goes_on_after_the_last_one(tmp_path: Path) -> None:
    """What the lost attempt left in the bucket stays its own; its sandbox is ended."""

    async def forever(agent: Agent) -> None:
        await agent.start()
        await agent.sleep(50)
        await agent.say("Done.")
        await agent.deliver({"answer.txt": b"0.5"})

    async def main() -> None:
        stage, home = make_stage(forever), tmp_path / "home"
        async with opened(home, stage) as runtime:
            await submitted(runtime, make_spec(limits={"time": "5m"}))
        shutil.copy(home / "runs.sqlite", tmp_path / "backup.sqlite")
        with pytest.raises(TimeoutError):
            async with opened(home, stage) as runtime:
                await asyncio.wait_for(worked(runtime, ["small"]), 10)
        (first,) = stage.started
        for name in ("runs.sqlite", "runs.sqlite-wal", "runs.sqlite-shm"):
            (home / name).unlink(missing_ok=True)
        shutil.copy(tmp_path / "backup.sqlite", home / "runs.sqlite")
        async with opened(home, stage) as runtime:
            await runtime.store.raise_incarnation()
            (status,) = await worked(runtime, ["small"])
            assert status.is_complete
            assert stage.started_of("solve") == [first, first.replace(".1", ".2")]
            assert stage.handle_of(first) is None
            assert status.runs[0].attempt == 2

    played(main)


def test_a_store_in_its_first_incarnation_is_not_held_against_the_bucket(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            assert await runtime.store.unreconciled(range(256)) == []
            await runtime.store.raise_incarnation()
            assert len(await runtime.store.unreconciled(range(256))) == 256
            await runtime.store.set_reconciled([3, 4])
            assert await runtime.store.unreconciled([2, 3, 4, 5]) == [2, 5]
            await runtime.store.raise_incarnation()
            assert await runtime.store.unreconciled([3]) == [3]

    played(main)


SPOILT = {
    "empty": b"",
    "no_json": b"{",
    "deep": b"[" * 100_000,
    "another_document": b'{"schema": "fde_ray.mark/1"}',
    "no_text": b"\xff\xfe",
}


@pytest.mark.parametrize("bad", SPOILT)
def test_a_spoilt_result_is_no_result_and_hides_no_other(tmp_path: Path, bad: str) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            await submitted(runtime, make_spec(repeats=2))
            one, _ = (await Controller(runtime).status("small")).runs
            key = layout.result_key("local", one.run_id, one.grade_id)
            await runtime.objects.create(key, SPOILT[bad])
            with pytest.raises(ValueError, match=r"."):
                await written(runtime.objects, "local", one.run_id, one.grade_id)
            await runtime.store.raise_incarnation()
            (status,) = await worked(runtime, ["small"])
            assert sorted(run.phase for run in status.runs) == [Phase.DONE, Phase.QUARANTINED]

    played(main)


def test_a_result_of_another_run_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            await worked(runtime, await submitted(runtime, make_spec()))
            found = await result(runtime)
            data = json.dumps(found.jsonable()).encode()
            await runtime.objects.create(layout.result_key("local", "ab" * 16, "cd" * 16), data)
            with pytest.raises(ValueError, match="another run or grade"):
                await written(runtime.objects, "local", "ab" * 16, "cd" * 16)
            assert await written(runtime.objects, "local", "00" * 16, "cd" * 16) is None

    played(main)


def test_attempts_are_counted_by_plain_numbers_only(tmp_path: Path) -> None:
    async def main() -> None:
        run = "ab" * 16
        async with opened(tmp_path, make_stage()) as runtime:
            assert await highest_attempt(runtime.objects, "local", run) == 0
            for name in ("2/start.json", "10/end.json", "x/start.json", "9999999999/a", "-1/a"):
                key = f"{layout.run_prefix('local', run)}attempts/{name}"
                await runtime.objects.create(key, b"{}")
            assert await highest_attempt(runtime.objects, "local", run) == 10

    played(main)
