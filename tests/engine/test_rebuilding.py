"""A lost run store comes back from the bucket: ended runs as they were, the others go on."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fde_ray.engine.controller import Controller
from fde_ray.engine.findings import findings_of
from fde_ray.engine.rebuilding import Rebuilder, Rebuilt, state_of
from fde_ray.engine.recovery import Fate
from fde_ray.engine.runtime import Runtime
from fde_ray.model.errors import StoreError, UserError
from fde_ray.model.result import canonical
from fde_ray.model.specs import SweepSpec
from fde_ray.model.states import GradeState, Phase
from fde_ray.sandbox.records import Handle
from fde_ray.store.objects import layout
from fde_ray.store.runs import LeaseTimes
from tests.engine.drivers import (
    CASE,
    make_spec,
    make_stage,
    marks,
    opened,
    submitted,
    two_points,
    worked,
)
from tests.engine.killing import Killer
from tests.engine.stage import Agent, Stage
from tests.engine.test_kill_points import MARKER, asks_and_delivers
from tests.engine.test_kill_points import SPEC as ASKING
from tests.engine.test_sweeps import until, waiting_for
from tests.engine.virtual import VirtualLoop, played


def lose_the_store(home: Path) -> None:
    for name in ("runs.sqlite", "runs.sqlite-wal", "runs.sqlite-shm"):
        (home / name).unlink(missing_ok=True)


async def rebuilt(runtime: Runtime, **options: Any) -> Rebuilt:
    return await Rebuilder(runtime).rebuild(**options)


async def left_at_work(home: Path, stage: Stage, spec: SweepSpec, after_s: float) -> None:
    """Begin a sweep and let its driver die while sessions live."""
    async with opened(home, stage) as runtime:
        await submitted(runtime, spec)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(worked(runtime, [spec.name]), after_s)


async def canonicals(runtime: Runtime, name: str) -> list[dict[str, Any]]:
    return [canonical(one) for one in (await findings_of(runtime, name)).results]


def test_finished_runs_come_back_with_results_costs_and_dialogue(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage(asks_and_delivers)
        async with opened(tmp_path, stage) as runtime:
            await worked(runtime, await submitted(runtime, ASKING))
            before = await canonicals(runtime, ASKING.name)
            costs = await Controller(runtime).costs(ASKING.name)
            rounds = await Controller(runtime).rounds(ASKING.name)
            (run,) = (await Controller(runtime).status(ASKING.name)).runs
            calls = {c.call_id for c in await runtime.store.calls_of(run.run_id)}
            events = await runtime.store.dialogue(f"{run.run_id}.1")
            pauses = await runtime.store.pauses(f"{run.run_id}.1")
            attempts = await runtime.store.attempts_of(run.run_id)
        started = list(stage.started)
        lose_the_store(tmp_path)
        async with opened(tmp_path, stage) as runtime:
            seen: list[tuple[int, int]] = []
            told = await rebuilt(runtime, watch=lambda n, of: seen.append((n, of)))
            assert (told.runs, dict(told.fates), told.findings) == (1, {Fate.DONE: 1}, ())
            assert (told.unknown_calls, told.problems, seen) == (0, (), [(1, 1)])
            assert told.incarnation == 2
            assert await canonicals(runtime, ASKING.name) == before
            assert await Controller(runtime).costs(ASKING.name) == costs
            assert any(line.role == "judge" for line in costs)
            assert await Controller(runtime).rounds(ASKING.name) == rounds == 1
            assert {c.call_id for c in await runtime.store.calls_of(run.run_id)} == calls
            assert await runtime.store.dialogue(f"{run.run_id}.1") == events
            assert await runtime.store.pauses(f"{run.run_id}.1") == pauses
            (again,) = await runtime.store.attempts_of(run.run_id)
            kept = ("number", "started_at", "agent_started_at", "solve_end", "commit_json", "state")
            assert [getattr(again, n) for n in kept] == [getattr(attempts[0], n) for n in kept]
            assert await Controller(runtime).submit(ASKING) is False
            (status,) = await worked(runtime, [ASKING.name])
            assert status.is_complete
            assert status.sweep.state == "running"
            assert stage.started == started

    played(main)


def test_a_rebuild_of_a_store_that_is_whole_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            await worked(runtime, await submitted(runtime, make_spec()))
            told = await rebuilt(runtime)
            assert (told.runs, told.sweeps, told.incarnation) == (0, (), 1)

    played(main)


def test_a_rebuild_that_takes_longer_than_a_lease_keeps_it(tmp_path: Path) -> None:
    quick = LeaseTimes(renew_every=timedelta(milliseconds=20))

    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            await worked(runtime, await submitted(runtime, make_spec(repeats=2)))
        lose_the_store(tmp_path)
        async with opened(tmp_path, make_stage()) as runtime:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            kept: list[bool] = []

            def goes_on_for_long(done: int, of: int) -> None:
                for _ in range(5):
                    loop.at += 50  # less than a lease, and in all far more
                    kept.append(_renewed_within(10, tmp_path, runtime.clock.now()))

            told = await Rebuilder(runtime, quick).rebuild(watch=goes_on_for_long)
            assert dict(told.fates) == {Fate.DONE: 2}
            assert kept == [True] * 10
            assert await runtime.store.lease_holder() is None

    played(main)


def _renewed_within(seconds: float, home: Path, now: float) -> bool:
    """Wait in real time until all shards are held for a while from `now` on."""
    until = time.monotonic() + seconds
    with closing(sqlite3.connect(home / "runs.sqlite")) as rows:
        while time.monotonic() < until:
            (least,) = rows.execute("SELECT min(expires_at) FROM shards").fetchone()
            if least > now + 50:
                return True
            time.sleep(0.01)
    return False


def test_a_dry_run_tells_and_stores_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            await worked(runtime, await submitted(runtime, make_spec(repeats=3)))
        lose_the_store(tmp_path)
        async with opened(tmp_path, make_stage()) as runtime:
            told = await rebuilt(runtime, dry_run=True)
            assert (told.dry_run, told.runs, told.incarnation) == (True, 3, 1)
            assert told.fates == {Fate.DONE: 3}
            assert await runtime.store.sweeps() == []
            assert await runtime.store.standings() == {}

    played(main)


def test_runs_that_were_at_work_are_told_and_attempted_again(tmp_path: Path) -> None:
    async def main() -> None:
        event: list[bool] = []
        stage = make_stage(waiting_for(event))
        await left_at_work(tmp_path, stage, make_spec(repeats=2, limits={"time": "5m"}), 5)
        first = list(stage.started)
        assert len(first) == 2
        lose_the_store(tmp_path)
        async with opened(tmp_path, stage) as runtime:
            told = await rebuilt(runtime)
            assert dict(told.fates) == {Fate.AGAIN: 2}
            assert sorted(told.living) == sorted(first)
            assert told.sweeps[0].state == "paused"
            event.append(True)
            await Controller(runtime).resume("small")
            (status,) = await worked(runtime, ["small"])
            assert status.is_complete
            assert [run.attempt for run in status.runs] == [2, 2]
            assert sorted(stage.started_of("solve")[2:]) == sorted(s[:-1] + "2" for s in first)
            assert all(stage.handle_of(subject) is None for subject in first)
            for subject in first:
                assert await runtime.objects.exists(layout.end_key("local", subject))

    played(main)


async def asks_then_works_on(agent: Agent, ends: list[bool]) -> None:
    await agent.start()
    await agent.say(f"{MARKER}\n- What is the maximum speed? And the unit?", delivered=False)
    await agent.sleep(100)
    while not ends:
        await agent.sleep(1)
    await agent.say("Done, see answer.txt.")
    await agent.deliver({"answer.txt": b"0.5"})


def test_a_session_at_work_that_was_noted_goes_on_where_it_stood(tmp_path: Path) -> None:
    async def main() -> None:
        ends: list[bool] = []
        spec = make_spec(conditions=["interact_req"], limits={"time": "1h"})
        undisturbed = make_stage(lambda agent: asks_then_works_on(agent, [True]))
        async with opened(tmp_path / "whole", undisturbed) as runtime:
            await worked(runtime, await submitted(runtime, spec))
            expected = await canonicals(runtime, "small")
        home = tmp_path / "home"
        stage = make_stage(lambda agent: asks_then_works_on(agent, ends))
        await left_at_work(home, stage, spec, 80)
        started = list(stage.started)
        lose_the_store(home)
        async with opened(home, stage) as runtime:
            await runtime.clock.sleep(1000)
            told = await rebuilt(runtime)
            assert (dict(told.fates), told.living, told.findings) == ({Fate.ADOPTED: 1}, (), ())
            assert told.sweeps[0].state == "paused"
            await runtime.clock.sleep(50)
            ends.append(True)
            (status,) = await worked(runtime, ["small"])
            assert status.is_complete
            assert stage.started_of("solve") == started
            assert await canonicals(runtime, "small") == expected
            (found,) = (await findings_of(runtime, "small")).results
            assert found.charged_s is not None
            assert found.charged_s < 200
            agent_cost = next(line for line in found.cost if line.role == "agent")
            assert agent_cost.cost_nanousd is None

    played(main)


@pytest.mark.parametrize("spoil", ["no_json", "empty", "deep", "another", "misplaced", "open_turn"])
def test_a_session_whose_note_is_spoilt_is_attempted_again(tmp_path: Path, spoil: str) -> None:
    async def main() -> None:
        ends: list[bool] = []
        spec = make_spec(conditions=["interact_req"], limits={"time": "1h"})
        stage = make_stage(lambda agent: asks_then_works_on(agent, ends))
        await left_at_work(tmp_path, stage, spec, 80)
        (path,) = (tmp_path / "objects").rglob("notes/*.json")
        note = json.loads(path.read_bytes())
        changes: dict[str, Any] = {
            "misplaced": {"subject": "other.1"},
            "open_turn": {"events": note["events"][:1]},
        }
        data = json.dumps(note | changes[spoil]).encode() if spoil in changes else SPOILS[spoil]
        path.unlink()
        path.write_bytes(data)
        lose_the_store(tmp_path)
        async with opened(tmp_path, stage) as runtime:
            told = await rebuilt(runtime)
            assert dict(told.fates) == {Fate.AGAIN: 1}
            assert len(told.findings) == 1
            ends.append(True)
            await Controller(runtime).resume("small")
            (status,) = await worked(runtime, ["small"])
            assert (status.is_complete, status.runs[0].attempt) == (True, 2)

    played(main)


class NotingAgent(Agent):
    """Has the bucket keep each turn before it is posted."""

    async def start(self) -> None:
        await super().start()
        await self.note()

    async def say(self, text: str, *, delivered: bool = True) -> str | None:
        await self.note(self.turns + 1)
        return await super().say(text, delivered=delivered)

    async def note(self, number: int = 0) -> None:
        await self._held(lambda plane, token: plane.put_events(token, number, b"a turn"))


class UnseenStage(Stage):
    """Its shims are read by nobody."""

    agent = NotingAgent

    async def turns(self, handle: Handle) -> int | None:
        return None


@pytest.mark.parametrize("more", [0, 1], ids=["as_noted", "a_turn_later"])
@pytest.mark.parametrize("asks", [True, False], ids=["with_questions", "without_a_word"])
def test_a_session_in_a_pod_is_known_by_what_its_shim_noted(
    tmp_path: Path, asks: bool, more: int
) -> None:
    async def solve(agent: Agent) -> None:
        await agent.start()
        if asks:
            await agent.say(f"{MARKER}\n- What is the maximum speed?", delivered=False)
        await agent.sleep(10_000)

    async def main() -> None:
        stage = UnseenStage(two_points()[CASE], solve, make_stage().extract)
        spec = make_spec(conditions=["interact_req"], limits={"time": "1h"})
        await left_at_work(tmp_path, stage, spec, 80)
        (subject,) = stage.started
        posted = layout.events_key("local", subject, int(asks) + 1)
        if more:
            (tmp_path / "objects" / posted).write_bytes(b"a turn")
        lose_the_store(tmp_path)
        async with opened(tmp_path, stage) as runtime:
            told = await rebuilt(runtime, dry_run=True)
            assert dict(told.fates) == {Fate.AGAIN if more else Fate.ADOPTED: 1}
        await stage.aclose()

    played(main)


def test_a_session_in_a_pod_that_noted_no_turn_is_attempted_again(tmp_path: Path) -> None:
    async def main() -> None:
        stage = UnseenStage(two_points()[CASE], waiting_for([]), make_stage().extract)
        stage.agent = Agent
        await left_at_work(tmp_path, stage, make_spec(limits={"time": "5m"}), 80)
        lose_the_store(tmp_path)
        async with opened(tmp_path, stage) as runtime:
            assert dict((await rebuilt(runtime, dry_run=True)).fates) == {Fate.AGAIN: 1}
        await stage.aclose()

    played(main)


def test_a_session_that_went_on_after_its_note_is_attempted_again(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage(lambda agent: asks_then_works_on(agent, []))
        spec = make_spec(conditions=["interact_req"], limits={"time": "1h"})
        await left_at_work(tmp_path, stage, spec, 80)
        lose_the_store(tmp_path)
        stage.agents[stage.started[0]].turns += 1
        stage.agents[stage.started[0]].replies += 1
        async with opened(tmp_path, stage) as runtime:
            told = await rebuilt(runtime, dry_run=True)
            assert dict(told.fates) == {Fate.AGAIN: 1}
            assert told.living == tuple(stage.started)
        await stage.aclose()

    played(main)


def test_a_collected_run_is_graded_without_its_agent(tmp_path: Path) -> None:
    async def main() -> None:
        async def stuck(agent: Agent) -> None:
            await agent.start()
            await agent.sleep(10_000)

        stage = make_stage(extract=stuck)
        await left_at_work(tmp_path, stage, make_spec(panel={"time": "4h"}), 60)
        tries = stage.started_of("extract")
        assert len(tries) == 1
        lose_the_store(tmp_path)
        stage.extract = make_stage().extract
        async with opened(tmp_path, stage) as runtime:
            told = await rebuilt(runtime)
            assert dict(told.fates) == {Fate.COLLECTED: 1}
            (status,) = await worked(runtime, ["small"])
            assert status.is_complete
            assert len(stage.started_of("solve")) == 1
            assert stage.started_of("extract")[1] == tries[0][:-1] + "2"
            assert stage.handle_of(tries[0]) is None
            (found,) = (await findings_of(runtime, "small")).results
            assert found.charged_s is not None

    played(main)


def test_what_was_set_aside_and_cancelled_stays_so(tmp_path: Path) -> None:
    async def main() -> None:
        broken = [True]

        async def solve(agent: Agent) -> None:
            await agent.start()
            if broken:
                broken.pop()
                return
            await waiting_for([])(agent)

        stage = make_stage(solve)
        async with opened(tmp_path, stage, attempts=1, concurrency={"runs": 1}) as runtime:
            await submitted(runtime, make_spec(repeats=3, limits={"time": "2h"}))
            working = asyncio.create_task(worked(runtime, ["small"]), name="working")
            await until(lambda: len(stage.started) == 2)
            await Controller(runtime).cancel("small")
            (before,) = await working
        lose_the_store(tmp_path)
        async with opened(tmp_path, stage) as runtime:
            told = await rebuilt(runtime)
            assert dict(told.fates) == {Fate.SET_ASIDE: 1, Fate.CANCELLED: 2}
            after = await Controller(runtime).status("small")
            assert after.sweep.state == "cancelled"
            facts = ("run_id", "phase", "attempt", "failure", "grade")
            assert [[getattr(run, n) for n in facts] for run in after.runs] == [
                [getattr(run, n) for n in facts] for run in before.runs
            ]

    played(main)


def test_sweeps_share_runs_again_and_a_second_grade_is_made_beside(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        other = make_spec("other", panel={"panel_stop": "all"})
        async with opened(tmp_path, stage) as runtime:
            await submitted(runtime, make_spec(), other)
            await worked(runtime, ["small"])
            await Controller(runtime).pause("other")
        lose_the_store(tmp_path)
        async with opened(tmp_path, stage) as runtime:
            told = await rebuilt(runtime)
            assert (told.runs, dict(told.fates)) == (1, {Fate.DONE: 1})
            assert [(one.name, one.state) for one in told.sweeps] == [
                ("other", "paused"),
                ("small", "running"),
            ]
            await Controller(runtime).resume("other")
            statuses = await worked(runtime, ["small", "other"])
            assert all(status.is_complete for status in statuses)
            assert len(stage.started_of("solve")) == 1

    played(main)


def test_a_sweep_whose_case_has_changed_is_told_and_left_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            await worked(runtime, await submitted(runtime, make_spec()))
        lose_the_store(tmp_path)
        changed = {CASE: two_points()[CASE].evolve(gt_hash="0" * 64)}
        async with opened(tmp_path, make_stage(), cases=changed) as runtime:
            told = await rebuilt(runtime)
            (problem,) = told.problems
            assert "case 017 has changed" in (problem.problem or "")
            assert await runtime.store.sweeps() == []
        async with opened(tmp_path, make_stage()) as runtime:
            assert (await rebuilt(runtime)).problems == ()
            assert (await Controller(runtime).status("small")).is_complete

    played(main)


def test_a_submit_to_a_lost_store_says_how_to_bring_it_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            await worked(runtime, await submitted(runtime, make_spec()))
        lose_the_store(tmp_path)
        async with opened(tmp_path, make_stage()) as runtime:
            with pytest.raises(UserError, match="store rebuild"):
                await Controller(runtime).submit(make_spec())
            await rebuilt(runtime)
            assert await Controller(runtime).submit(make_spec()) is False

    played(main)


def test_a_session_of_no_known_run_is_told_and_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage(waiting_for([]))
        await left_at_work(tmp_path, stage, make_spec(limits={"time": "5m"}), 5)
        lose_the_store(tmp_path)
        shutil.rmtree(tmp_path / "objects")
        async with opened(tmp_path, stage) as runtime:
            told = await rebuilt(runtime)
            assert (told.strangers, told.living) == (tuple(stage.started), ())
            assert stage.handle_of(stage.started[0]) is not None
        await stage.aclose()

    played(main)


@pytest.mark.parametrize("after", range(1, 12, 2))
def test_a_rebuild_killed_midway_is_repeated(tmp_path: Path, after: int) -> None:
    async def main() -> None:
        stage = make_stage()
        async with opened(tmp_path, stage) as runtime:
            specs = [make_spec("one", repeats=2), make_spec("two", repeats=3, series="x")]
            await worked(runtime, await submitted(runtime, *specs))
            before = [await canonicals(runtime, name) for name in ("one", "two")]
        started = list(stage.started)
        lose_the_store(tmp_path)
        async with opened(tmp_path, stage) as runtime:
            killer = Killer(after)
            killer.watch(runtime)
            try:
                await rebuilt(runtime)
            except StoreError:
                assert killer.has_struck
        async with opened(tmp_path, stage) as runtime:
            await rebuilt(runtime)
            assert [s.sweep.state for s in await statuses(runtime)] == ["running", "running"]
            await worked(runtime, ["one", "two"])
            assert [await canonicals(runtime, name) for name in ("one", "two")] == before
            assert stage.started == started

    played(main)


async def statuses(runtime: Runtime) -> list[Any]:
    names = [sweep.name for sweep in await runtime.store.sweeps()]
    return [await Controller(runtime).status(name) for name in names]


def test_a_store_lost_at_any_moment_leaves_a_sweep_that_ends_alike(tmp_path: Path) -> None:
    """Killed after any of its writes, and the rows gone: one result, as of an undisturbed one."""

    async def one(home: Path, after: int | None) -> tuple[dict[str, Any], int, int]:
        stage, killer = make_stage(asks_and_delivers), Killer(after)
        async with opened(home, stage) as runtime:
            await submitted(runtime, ASKING)
        async with opened(home, stage) as runtime:
            killer.watch(runtime)
            try:
                await worked(runtime, [ASKING.name])
            except StoreError:
                assert killer.has_struck
        if after is not None:
            lose_the_store(home)
        async with opened(home, stage) as runtime:
            if after is not None:
                await rebuilt(runtime)
            await Controller(runtime).resume(ASKING.name)
            (status,) = await worked(runtime, [ASKING.name])
            assert status.is_complete
            (found,) = await canonicals(runtime, ASKING.name)
            keys = await runtime.objects.list("local/runs/")
            assert await runtime.store.open_sessions() == []
            assert set((await marks(runtime, ASKING.name)).values()) == {("done", "scored")}
            await no_session_lives(stage)
            return found, sum(key.endswith("/result.json") for key in keys), killer.writes

    expected, _, writes = played(lambda: one(tmp_path / "whole", None))
    assert writes > 50
    for after in range(0, writes, 5):
        home = tmp_path / f"killed-{after}"
        found, results, _ = played(lambda h=home, n=after: one(h, n))  # type: ignore[misc]
        assert (found, results) == (expected, 1), f"lost after write {after} of {writes}"
        shutil.rmtree(home)


async def no_session_lives(stage: Stage) -> None:
    alive = [one for one in await stage.sessions() if await stage.state(one) == "running"]
    assert alive == []


SPOILS = {
    "empty": b"",
    "no_json": b"{",
    "deep": b"[" * 50_000,
    "another": b'{"a": 1}',
    "bytes": b"\xff",
}
OBJECTS = ("start.json", "end.json", "dialogue.jsonl", "all-000000.jsonl.gz", "manifest.json")


@pytest.mark.parametrize("spoil", SPOILS)
@pytest.mark.parametrize("name", OBJECTS)
def test_a_spoilt_object_of_a_finished_run_hides_no_result(
    tmp_path: Path, name: str, spoil: str
) -> None:
    async def main() -> None:
        stage = make_stage(asks_and_delivers)
        async with opened(tmp_path, stage) as runtime:
            await worked(runtime, await submitted(runtime, ASKING))
            before = await canonicals(runtime, ASKING.name)
        lose_the_store(tmp_path)
        spoiled = put_everywhere(tmp_path, (name,), SPOILS[spoil])
        assert spoiled
        async with opened(tmp_path, stage) as runtime:
            told = await rebuilt(runtime)
            assert dict(told.fates) == {Fate.DONE: 1}
            assert told.findings or (name, spoil) == ("dialogue.jsonl", "empty")
            assert await canonicals(runtime, ASKING.name) == before
            if name.startswith("all-"):
                assert told.unknown_calls == 1
                costs = await Controller(runtime).costs(ASKING.name)
                assert None in [line.cost_nanousd for line in costs]

    played(main)


def put_everywhere(home: Path, names: Iterable[str], data: bytes) -> list[Path]:
    found = [
        path for path in (home / "objects").rglob("*") if path.is_file() and path.name in names
    ]
    for path in found:
        path.unlink()
        path.write_bytes(data)
    return found


@pytest.mark.parametrize("name", ["end.json", "manifest.json", "dialogue.jsonl"])
def test_nothing_is_graded_from_what_cannot_be_read(tmp_path: Path, name: str) -> None:
    """An attempt whose remains are spoilt is no zero: another one follows."""

    async def main() -> None:
        stage = make_stage(asks_and_delivers)
        async with opened(tmp_path, stage) as runtime:
            await worked(runtime, await submitted(runtime, ASKING))
            before = await canonicals(runtime, ASKING.name)
        lose_the_store(tmp_path)
        put_everywhere(tmp_path, [name], b"{")
        for path in list((tmp_path / "objects").rglob("result.json")):
            path.unlink()
        for path in list((tmp_path / "objects").rglob("marks/*/*.json")):
            path.unlink()
        async with opened(tmp_path, stage) as runtime:
            told = await rebuilt(runtime)
            assert set(told.fates) <= {Fate.QUEUED, Fate.AGAIN}
            await Controller(runtime).resume(ASKING.name)
            (status,) = await worked(runtime, [ASKING.name])
            assert status.is_complete
            assert status.runs[0].attempt == 2
            after = await canonicals(runtime, ASKING.name)
            assert [one["score"] for one in after] == [one["score"] for one in before]

    played(main)


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_spoilt_result_is_made_again_or_set_aside_and_never_invented(
    tmp_path: Path, spoil: str
) -> None:
    async def main() -> None:
        stage = make_stage()
        async with opened(tmp_path, stage) as runtime:
            await worked(runtime, await submitted(runtime, make_spec(repeats=2)))
            runs = (await Controller(runtime).status("small")).runs
        lose_the_store(tmp_path)
        key = layout.result_key("local", runs[0].run_id, runs[0].grade_id)
        (tmp_path / "objects" / key).unlink()
        (tmp_path / "objects" / key).write_bytes(SPOILS[spoil])
        async with opened(tmp_path, stage) as runtime:
            told = await rebuilt(runtime)
            assert dict(told.fates) == {Fate.COLLECTED: 1, Fate.DONE: 1}
            assert {finding.kind for finding in told.findings} >= {"malformed", "missing"}
            (status,) = await worked(runtime, ["small"])
            assert [(run.phase, run.grade) for run in status.runs] == [
                (Phase.QUARANTINED, GradeState.GRADE_MISSING),
                (Phase.DONE, GradeState.SCORED),
            ]

    played(main)


BAD_SPECS = {
    "no_document": b"",
    "no_spec": b"{}",
    "another_name": b"other",
    "no_material": b"material",
    "material_of_another_kind": b"kind",
}


@pytest.mark.parametrize("bad", BAD_SPECS)
def test_a_sweep_with_a_spoilt_spec_is_a_problem_and_hides_no_other(
    tmp_path: Path, bad: str
) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            await worked(runtime, await submitted(runtime, make_spec("one"), make_spec("two")))
        lose_the_store(tmp_path)
        path = tmp_path / "objects" / layout.spec_key("local", "one", 1)
        document = json.loads(path.read_bytes())
        changes: dict[str, Any] = {
            "another_name": {"name": "other"},
            "no_material": {"resolved": None},
            "material_of_another_kind": {"resolved": {"cases": {"017": 5}}},
        }
        data = json.dumps(document | changes[bad]).encode() if bad in changes else BAD_SPECS[bad]
        path.unlink()
        path.write_bytes(data)
        stray = tmp_path / "objects" / "local" / "sweeps" / "three" / "marks" / "aa"
        stray.mkdir(parents=True)
        (stray / "aa.bb.json").write_bytes(b"{}")
        async with opened(tmp_path, make_stage()) as runtime:
            told = await rebuilt(runtime)
            assert [one.name for one in told.problems] == ["one", "three"]
            assert (await Controller(runtime).status("two")).is_complete

    played(main)


def test_the_state_of_a_sweep_follows_from_what_is_left() -> None:
    assert state_of([Fate.DONE, Fate.SET_ASIDE]) == "running"
    assert state_of([Fate.DONE, Fate.AGAIN]) == "paused"
    assert state_of([Fate.DONE, Fate.CANCELLED]) == "cancelled"
    assert state_of([Fate.CANCELLED, Fate.QUEUED]) == "paused"
    assert state_of([]) == "running"
