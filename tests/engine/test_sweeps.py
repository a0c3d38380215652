"""Sweeps share runs, stop, wait and go on, and refuse what they were not planned with."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fde_ray.analysis.tables import run_rows
from fde_ray.engine.campaign import (
    LOOK_S,
    NOBODY_S,
    Progress,
    _watched,
    carried_out,
    followed,
    progress_of,
)
from fde_ray.engine.controller import Controller
from fde_ray.engine.findings import findings_of
from fde_ray.engine.planning import Planner, plan_sweep
from fde_ray.engine.submission import Submission
from fde_ray.model.base import sha256_hex
from fde_ray.model.errors import StoreError, UserError
from fde_ray.model.result import canonical
from fde_ray.model.states import Phase
from fde_ray.protocol.packs import builtin_pack
from fde_ray.scaffolds import scaffold
from fde_ray.store.objects import layout
from fde_ray.store.runs import LeaseOwner
from tests.engine.drivers import (
    CASE,
    make_spec,
    make_stage,
    marks,
    opened,
    result,
    result_key,
    submitted,
    two_points,
    worked,
)
from tests.engine.stage import Agent, Script
from tests.engine.virtual import played


def waiting_for(event: list[bool]) -> Script:
    async def solve(agent: Agent) -> None:
        await agent.start()
        while not event:
            await agent.sleep(0.5)
        await agent.say("Done.")
        await agent.deliver({"answer.txt": b"0.5"})

    return solve


def test_two_sweeps_share_one_run_and_both_get_its_mark(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        async with opened(tmp_path, stage) as runtime:
            names = await submitted(runtime, make_spec("one"), make_spec("two"))
            await worked(runtime, names)
            assert len(stage.started_of("solve")) == 1
            assert await marks(runtime, "one") == await marks(runtime, "two")
            assert len(await marks(runtime, "two")) == 1

    played(main)


def test_runs_of_a_sweep_that_nobody_asked_for_stay_queued(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        async with opened(tmp_path, stage) as runtime:
            await submitted(runtime, make_spec("other").evolve(series="other"), make_spec("mine"))
            (mine,) = await worked(runtime, ["mine"])
            assert mine.is_complete
            assert (await Controller(runtime).phases("other")) == {Phase.QUEUED: 1}
            assert len(stage.started_of("solve")) == 1

    played(main)


def test_a_sweep_of_runs_that_had_ended_gets_its_marks_too(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        async with opened(tmp_path, stage) as runtime:
            await worked(runtime, await submitted(runtime, make_spec("one")))
            await carried_out(runtime, await submitted(runtime, make_spec("two")))
            assert len(await marks(runtime, "two")) == 1
            assert len(stage.started_of("solve")) == 1

    played(main)


@pytest.mark.parametrize("way", ["submitted", "replaced", "submitted_again"])
def test_a_sweep_of_runs_that_had_ended_has_its_marks_before_anybody_works_on_it(
    tmp_path: Path, way: str
) -> None:
    """Whoever has it stored from afar starts no engine."""

    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            await worked(runtime, await submitted(runtime, make_spec("one")))
            if way == "replaced":
                await submitted(runtime, make_spec("two").evolve(series="other"))
                assert await marks(runtime, "two") == {}
                await Submission(runtime).replace(make_spec("two"))
            else:
                await submitted(runtime, make_spec("two"))
            if way == "submitted_again":
                for key in await runtime.objects.list(layout.marks_prefix(runtime.tenant, "two")):
                    await runtime.objects.delete(key)
                await submitted(runtime, make_spec("two"))
            assert await marks(runtime, "two") == await marks(runtime, "one")
            assert len(await marks(runtime, "two")) == 1

    played(main)


def test_a_sweep_has_no_marks_of_runs_that_have_not_ended(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            await worked(runtime, await submitted(runtime, make_spec("one")))
            await submitted(runtime, make_spec("two", repeats=3))
            assert await marks(runtime, "two") == await marks(runtime, "one")

    played(main)


def test_a_shared_run_whose_grade_is_still_to_be_made_has_not_ended(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        async with opened(tmp_path, stage) as runtime:
            await worked(runtime, await submitted(runtime, make_spec("one")))
            other = make_spec("two", panel={"panel_stop": "all"})
            await submitted(runtime, other)
            controller = Controller(runtime)
            status = await controller.status("two")
            assert (status.phases, status.ended, status.to_grade) == ({Phase.DONE: 1}, 0, 1)
            seen = await progress_of(controller, ["two"], 0.0)
            assert (seen.planned, seen.finished, seen.graded, seen.to_grade) == (1, 0, 0, 1)
            found = await findings_of(runtime, "two")
            (row,) = run_rows(found.results, found.planned)
            assert row["status"] == "pending"  # and not a missing result
            await worked(runtime, ["two"])
            assert (await controller.status("two")).ended == 1
            seen = await progress_of(controller, ["one", "two"], 0.0)
            assert (seen.planned, seen.finished, seen.graded, seen.to_grade) == (2, 2, 2, 0)

    played(main)


def test_a_store_that_is_away_for_a_look_at_progress_ends_no_sweep(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            names = await submitted(runtime, make_spec())
            seen: list[Progress] = []

            class Away(Controller):
                looks = 0

                async def notices(self, name: str) -> tuple[str, ...]:
                    self.looks += 1
                    if self.looks == 2:
                        raise StoreError("the store is away")
                    return await super().notices(name)

            watching = asyncio.create_task(_watched(Away(runtime), names, seen.append))
            await asyncio.sleep(3 * LOOK_S)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            assert watching.cancelled()
            assert len(seen) >= 2

    played(main)


def test_a_sweep_that_another_process_carries_out_can_be_followed_to_its_end(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            names = await submitted(runtime, make_spec(repeats=2))
            seen: list[Progress] = []
            following = asyncio.create_task(followed(runtime, names, seen.append))
            await asyncio.sleep(1)
            await worked(runtime, names)
            end = await following
            assert (end.is_settled, end.statuses[0].is_complete) == (True, True)
            assert [one.finished for one in (seen[0], seen[-1])] == [0, 2]

    played(main)


def test_who_follows_a_sweep_on_which_nobody_is_at_work_does_not_wait_for_ever(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            names = await submitted(runtime, make_spec())
            began = runtime.clock.now()
            end = await followed(runtime, names, lambda _: None)
            assert (end.is_settled, end.statuses[0].ended) == (False, 0)
            assert runtime.clock.now() - began < 2 * NOBODY_S

    played(main)


def test_resubmitting_a_finished_sweep_does_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        async with opened(tmp_path, stage) as runtime:
            (name,) = await submitted(runtime, make_spec())
            await worked(runtime, [name])
            before = canonical(await result(runtime))
            assert await Controller(runtime).submit(make_spec()) is False
            await Controller(runtime).resume(name)
            started = list(stage.started)
            (status,) = await carried_out(runtime, [name])
            assert (status.is_complete, stage.started) == (True, started)
            assert canonical(await result(runtime)) == before

    played(main)


def test_another_spec_under_a_known_name_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            await submitted(runtime, make_spec())
            with pytest.raises(UserError, match="repeats is 1 there and 2 here"):
                await Controller(runtime).submit(make_spec(repeats=2))

    played(main)


def test_cancelling_stops_a_run_that_nobody_else_wants(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage(waiting_for([]))
        async with opened(tmp_path, stage) as runtime:
            (name,) = await submitted(runtime, make_spec())
            working = asyncio.create_task(worked(runtime, [name]), name="working")
            await until(lambda: bool(stage.started))
            await Controller(runtime).cancel(name)
            (status,) = await working
            (run,) = status.runs
            assert run.phase is Phase.CANCELLED
            assert stage.handle_of(stage.started[0]) is None
            assert list((await marks(runtime)).values()) == [("cancelled", "none")]

    played(main)


def test_a_shared_run_goes_on_when_one_of_its_sweeps_is_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        event: list[bool] = []
        stage = make_stage(waiting_for(event))
        async with opened(tmp_path, stage) as runtime:
            await submitted(runtime, make_spec("one"), make_spec("two"))
            working = asyncio.create_task(worked(runtime, ["two"]), name="working")
            await until(lambda: bool(stage.started))
            await Controller(runtime).cancel("one")
            assert await Controller(runtime).is_settled("one")
            await runtime.clock.sleep(3)
            event.append(True)
            (status,) = await working
            assert status.is_complete
            assert len(stage.started_of("solve")) == 1

    played(main)


def test_pausing_lets_live_runs_finish_and_admits_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        event: list[bool] = []
        stage = make_stage(waiting_for(event))
        async with opened(tmp_path, stage, concurrency={"runs": 1}) as runtime:
            (name,) = await submitted(runtime, make_spec(repeats=5))
            working = asyncio.create_task(worked(runtime, [name]), name="working")
            await until(lambda: bool(stage.started))
            await Controller(runtime).pause(name)
            event.append(True)
            (status,) = await working
            assert status.phases == {Phase.DONE: 1, Phase.QUEUED: 4}
            await Controller(runtime).resume(name)
            (status,) = await worked(runtime, [name])
            assert status.is_complete

    played(main)


def test_h03_resuming_runs_again_only_what_our_troubles_put_aside(tmp_path: Path) -> None:
    async def main() -> None:
        broken = [True, True]

        async def solve(agent: Agent) -> None:
            await agent.start()
            if broken:
                broken.pop()
                return
            await agent.say("Done.")
            await agent.deliver({"answer.txt": b"0.5"})

        stage = make_stage(solve)
        async with opened(tmp_path, stage, attempts=1) as runtime:
            (name,) = await submitted(runtime, make_spec(repeats=5))
            (status,) = await worked(runtime, [name])
            assert status.phases == {Phase.DONE: 3, Phase.QUARANTINED: 2}
            await Controller(runtime).resume(name)
            (status,) = await worked(runtime, [name])
            assert status.is_complete
            assert sorted(run.attempt for run in status.runs) == [1, 1, 1, 2, 2]

    played(main)


def test_a_second_process_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    async def main() -> None:
        sleeper = started_sleeper()
        try:
            async with opened(tmp_path, make_stage()) as runtime:
                names = await submitted(runtime, make_spec())
                started = runtime.store._started(sleeper.pid) or ""
                owner = LeaseOwner("other", os.uname().nodename, sleeper.pid, started)
                await runtime.store.take_lease(owner)
                with pytest.raises(UserError, match=f"process {sleeper.pid} on"):
                    await carried_out(runtime, names)
        finally:
            sleeper.communicate(b"\n")

    played(main)


def test_a_result_that_is_there_already_wins_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with opened(tmp_path / "other", make_stage(), clock=None) as runtime:
            (status,) = await worked(runtime, await submitted(runtime, make_spec()))
            data = await runtime.objects.get(result_key(runtime, status))
        earlier = json.dumps(json.loads(data) | {"score": 0.125}).encode()
        async with opened(tmp_path / "home", make_stage()) as runtime:
            names = await submitted(runtime, make_spec())
            await runtime.objects.create(result_key(runtime, status), earlier)
            (status,) = await worked(runtime, names)
            (run,) = status.runs
            assert (run.phase, run.score) == (Phase.DONE, 0.125)
            assert run.commit_sha == sha256_hex(earlier)
            assert (await result(runtime)).score == 0.125

    with caplog.at_level(logging.ERROR):
        played(main)
    assert "result_differs" in [record.message for record in caplog.records]


def test_an_unreadable_result_puts_its_run_aside(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            names = await submitted(runtime, make_spec())
            (status,) = [await Controller(runtime).status(name) for name in names]
            await runtime.objects.create(result_key(runtime, status), b"{")
            (status,) = await worked(runtime, names)
            (run,) = status.runs
            assert (run.phase, run.failure) == (Phase.QUARANTINED, "internal_error")

    played(main)


CHANGES = {
    "visible_hash": "its instruction or data",
    "information_hash": "its information.md",
    "gt_hash": "its gt.json",
    "scoring_hash": "its evaluator, truth or reference",
}


@pytest.mark.parametrize("part", CHANGES)
def test_a_sweep_whose_case_has_changed_is_refused_before_anything_runs(
    tmp_path: Path, part: str
) -> None:
    async def main() -> None:
        stage = make_stage()
        async with opened(tmp_path, stage) as runtime:
            (name,) = await submitted(runtime, make_spec())
        changed = two_points()[CASE].evolve(**{part: "0" * 64})
        async with opened(tmp_path, stage, cases={CASE: changed}) as runtime:
            with pytest.raises(UserError, match="case 017 has changed") as refused:
                await carried_out(runtime, [name])
            assert CHANGES[part] in str(refused.value)
            assert stage.started == []
            with pytest.raises(UserError, match="another spec"):
                await Controller(runtime).submit(make_spec())

    played(main)


def test_a_sweep_whose_case_is_gone_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            (name,) = await submitted(runtime, make_spec())
        async with opened(tmp_path, make_stage(), cases={"036": two_points()[CASE]}) as runtime:
            with pytest.raises(UserError, match="case 017 is not here"):
                await carried_out(runtime, [name])

    played(main)


def test_an_unknown_prompt_pack_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            with pytest.raises(UserError, match="no prompt pack 'official'"):
                await Controller(runtime).submit(make_spec(prompt_pack="official"))
            assert await runtime.store.sweeps() == []

    played(main)


def test_a_sweep_that_cannot_go_on_is_paused_and_blocks_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        changed = two_points()[CASE].evolve(scoring_hash="0" * 64)
        async with opened(tmp_path, stage, cases={CASE: changed}) as runtime:
            await submitted(runtime, make_spec("old", repeats=3))
        async with opened(tmp_path, stage) as runtime:
            await submitted(runtime, make_spec("new", series="new"))
            (status,) = await carried_out(runtime, ["new"])
            assert status.is_complete
            old = await Controller(runtime).status("old")
            assert (old.sweep.state, old.phases) == ("paused", {Phase.QUEUED: 3})

    played(main)


def test_progress_tells_the_time_that_was_spent(tmp_path: Path) -> None:
    async def main() -> None:
        seen: list[Progress] = []
        async with opened(tmp_path, make_stage(waiting_long)) as runtime:
            await carried_out(runtime, await submitted(runtime, make_spec()), seen.append)
        assert seen[-1].finished == seen[-1].planned == 1
        assert seen[-1].elapsed_s >= 4
        assert [one.elapsed_s for one in seen] == sorted(one.elapsed_s for one in seen)

    played(main)


async def waiting_long(agent: Agent) -> None:
    await agent.start()
    await agent.sleep(4)
    await agent.say("Done.")
    await agent.deliver({"answer.txt": b"0.5"})


def test_heartbeats_of_extraction_sessions_are_written(tmp_path: Path) -> None:
    async def main() -> None:
        heard: list[float | None] = []

        async def extract(agent: Agent) -> None:
            await agent.start()
            await agent.beat()
            await agent.sleep(12)
            await agent.say("extracted")

        stage = make_stage(extract=extract)
        async with opened(tmp_path, stage, attempts=1) as runtime:
            await worked(runtime, await submitted(runtime, make_spec()))
            for subject in stage.started_of("extract"):
                heard.append((await runtime.store.session(subject)).heartbeat_at)
        assert heard
        assert None not in heard

    played(main)


def test_ten_thousand_runs_are_planned_in_seconds() -> None:
    spec = make_spec(repeats=100, conditions=[f"oracle:{p}" for p in range(100)])
    began = time.process_time()
    plans = plan_sweep(spec, Planner(two_points(), builtin_pack(), scaffold))
    assert len({plan.run_id for plan in plans}) == 10_000
    assert time.process_time() - began < 10


def started_sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.1)
