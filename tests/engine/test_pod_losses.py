"""What befalls pods: what the agent used up is graded, what its cluster did is tried again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path

import pytest

from fde_ray.engine.driver import ShardDriver, own_pools
from fde_ray.engine.runtime import Runtime
from fde_ray.engine.steward import SWEEP_EVERY_S, Steward
from fde_ray.model.errors import SandboxError
from fde_ray.model.failures import POD_LOSSES, FailureKind
from fde_ray.model.ids import CONTROLLER_SHARD
from fde_ray.model.states import GradeState, Phase, SolveEnd
from fde_ray.sandbox.proving import Decoys
from fde_ray.sandbox.records import Handle, Outcome, ProcessHandle, SessionStart
from fde_ray.store.objects import layout
from fde_ray.store.runs import SweepRun
from tests.engine.drivers import (
    make_spec,
    opened,
    result,
    submitted,
    two_points,
    worked,
)
from tests.engine.stage import Agent, Script, Stage, delivers, extracting, packed
from tests.engine.virtual import played


class Pods(Stage):
    """agent_ends: by attempt or route number, what a cluster says of an agent that ended by itself.
    outcomes: likewise of pods that are no more."""

    def __init__(
        self,
        solve: Script = delivers,
        extract: Script | None = None,
        *,
        agent_ends: Mapping[int, FailureKind] | None = None,
        outcomes: Mapping[int, FailureKind] | None = None,
    ) -> None:
        super().__init__(two_points()["017"], solve, extract or extracting(0.5))
        self._agent_ends, self._outcomes = agent_ends or {}, outcomes or {}
        self.shards: list[frozenset[int]] = []
        self.cannot_tell = False
        self.swept: list[frozenset[str]] = []
        self.sessions_seen: list[SessionStart] = []

    async def start(self, session: SessionStart) -> Handle:
        self.sessions_seen.append(session)
        return await super().start(session)

    async def agent_end(self, handle: Handle) -> Outcome | None:
        return _told(self._agent_ends, handle)

    async def outcome(self, handle: Handle) -> Outcome:
        return _told(self._outcomes, handle) or await super().outcome(handle)

    async def watch_shards(self, shards: Collection[int]) -> None:
        self.shards.append(frozenset(shards))
        if self.cannot_tell:
            raise SandboxError("the pods cannot be listed")

    async def sweep(
        self, kept: Callable[[], Awaitable[Collection[str]]], least_age_s: float
    ) -> list[str]:
        self.swept.append(frozenset(await kept()))
        return []


def _told(kinds: Mapping[int, FailureKind], handle: Handle) -> Outcome | None:
    kind = kinds.get(int(handle.subject.rpartition(".")[2]))
    return kind and Outcome(phase="unknown", failure=kind, detail=f"said of {kind.value}")


async def ends_by_itself(agent: Agent) -> None:
    """The agent's container ends; its shim sees it, and collects."""
    await agent.start()
    await agent.exit("agent_error")
    await agent.deliver({"answer.txt": b"0.5"})


async def only_run(runtime: Runtime) -> SweepRun:
    (status,) = await worked(runtime, await submitted(runtime, make_spec()))
    (run,) = status.runs
    return run


def test_an_agent_that_its_kernel_killed_used_up_its_memory(tmp_path: Path) -> None:
    async def main() -> None:
        pods = Pods(ends_by_itself, agent_ends={1: FailureKind.AGENT_RESOURCE})
        async with opened(tmp_path, pods) as runtime:
            run = await only_run(runtime)
            assert (run.phase, run.grade, run.attempt) == (Phase.DONE, GradeState.SCORED, 1)
            assert run.solve_end is SolveEnd.AGENT_RESOURCE
            found = await result(runtime)
            assert (found.solve_end, found.score) == (SolveEnd.AGENT_RESOURCE, 0.5)
            assert found.attempts[0].detail == "said of agent_resource"

    played(main)


def test_an_agent_that_only_ended_is_an_error_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        pods = Pods(ends_by_itself, agent_ends={1: FailureKind.AGENT_ERROR})
        async with opened(tmp_path, pods) as runtime:
            run = await only_run(runtime)
            assert (run.solve_end, run.attempt) == (SolveEnd.AGENT_ERROR, 1)
            assert (await result(runtime)).score == 0.5

    played(main)


@pytest.mark.parametrize("kind", [FailureKind.NODE_DRAINED, FailureKind.NODE_PRESSURE])
def test_an_agent_that_its_node_ended_is_tried_again(tmp_path: Path, kind: FailureKind) -> None:
    async def solve(agent: Agent) -> None:
        await (ends_by_itself if agent.number == 1 else delivers)(agent)

    async def main() -> None:
        pods = Pods(solve, agent_ends={1: kind})
        async with opened(tmp_path, pods) as runtime:
            run = await only_run(runtime)
            assert (run.grade, run.attempt) == (GradeState.SCORED, 2)
            notes = (await result(runtime)).attempts
            assert [note.kind for note in notes] == [kind, None]

    played(main)


@pytest.mark.parametrize("kind", sorted(POD_LOSSES))
def test_a_pod_that_its_cluster_ended_is_followed_by_another(
    tmp_path: Path, kind: FailureKind
) -> None:
    async def solve(agent: Agent) -> None:
        await agent.start()
        if agent.number > 1:
            await agent.say("Done.")
            await agent.deliver({"answer.txt": b"0.5"})

    async def main() -> None:
        async with opened(tmp_path, Pods(solve, outcomes={1: kind})) as runtime:
            run = await only_run(runtime)
            assert (run.grade, run.attempt) == (GradeState.SCORED, 2)
            assert [note.kind for note in (await result(runtime)).attempts] == [kind, None]

    played(main)


async def snapshots_and_vanishes(agent: Agent) -> None:
    await agent.start()
    data, commit = packed({"answer.txt": b"0.5"})
    part, early = commit.parts[0], commit.evolve(snapshot="s1", final=False)
    await agent._held(lambda plane, token: plane.put_part(token, "s1", part.seq, part.sha256, data))
    await agent._held(lambda plane, token: plane.commit(token, early))


@pytest.mark.parametrize(
    ("solve", "score"),
    [(snapshots_and_vanishes, 0.5), (lambda agent: agent.start(), 0.0)],
    ids=["a snapshot", "nothing"],
)
def test_a_pod_that_filled_its_own_disk_is_graded_from_its_last_snapshot(
    tmp_path: Path, solve: Script, score: float
) -> None:
    async def main() -> None:
        pods = Pods(solve, outcomes={1: FailureKind.AGENT_RESOURCE})
        async with opened(tmp_path, pods) as runtime:
            run = await only_run(runtime)
            assert (run.grade, run.attempt) == (GradeState.SCORED, 1)
            assert run.solve_end is SolveEnd.AGENT_RESOURCE
            assert run.score == score

    played(main)


def test_an_extractor_that_its_node_ended_is_tried_again(tmp_path: Path) -> None:
    async def extract(agent: Agent) -> None:
        if agent.route == 0 and agent.number == 1:
            await agent.start()
            await agent.exit("agent_error")
            await agent.deliver({})
        else:
            await extracting(0.5)(agent)

    class Drained(Pods):
        async def agent_end(self, handle: Handle) -> Outcome | None:
            if not handle.subject.endswith("/0.1"):
                return None
            return Outcome(phase="ended", failure=FailureKind.NODE_DRAINED, detail="")

    async def main() -> None:
        async with opened(tmp_path, Drained(extract=extract)) as runtime:
            run = await only_run(runtime)
            assert (run.grade, run.score) == (GradeState.SCORED, 0.5)
            routes = (await result(runtime)).routes
            assert all(route.failure is None for route in routes)

    played(main)


def test_an_extractor_that_filled_its_own_disk_casts_no_vote(tmp_path: Path) -> None:
    async def extract(agent: Agent) -> None:
        if agent.route == 0:
            await agent.start()
        else:
            await extracting(0.5)(agent)

    class Evicted(Pods):
        async def outcome(self, handle: Handle) -> Outcome:
            assert handle.subject.endswith("/0.1"), "one try is enough"
            return Outcome(phase="unknown", failure=FailureKind.AGENT_RESOURCE, detail="disk")

    async def main() -> None:
        async with opened(tmp_path, Evicted(extract=extract)) as runtime:
            run = await only_run(runtime)
            assert (run.grade, run.score) == (GradeState.SCORED, 0.5)
            first = (await result(runtime)).routes[0]
            assert (first.failure, first.vote) == (FailureKind.EXTRACTOR_ERROR, None)

    played(main)


class MadeTwice(Pods):
    """Another driver was faster, in a pod that is no more."""

    runtime: Runtime
    role: str
    turned_away: list[str]

    async def start(self, session: SessionStart) -> Handle:
        handle = await super().start(session)
        if session.role == self.role and session.subject.endswith(".1"):
            other = ProcessHandle(subject=session.subject, pid=1, start_time=1, dir="/other")
            assert await self.runtime.store.record_handle(session.subject, other.jsonable())
        return handle

    async def remove(self, handle: Handle) -> None:
        if isinstance(handle, ProcessHandle) and not handle.pid:
            self.turned_away.append(handle.subject)
        await super().remove(handle)


@pytest.mark.parametrize("role", ["solve", "extract"])
def test_a_session_stays_in_the_pod_that_was_recorded_first(tmp_path: Path, role: str) -> None:
    async def main() -> None:
        pods = MadeTwice()
        pods.role, pods.turned_away = role, []
        async with opened(tmp_path, pods) as runtime:
            pods.runtime = runtime
            run = await only_run(runtime)
            assert (run.grade, run.score) == (GradeState.SCORED, 0.5)
            pinned = pods.started_of(role)[0]
            assert pinned in pods.turned_away, "no second pod is left"
            row = await runtime.store.session(pinned)
            assert row.handle["dir"] == "/other"
            assert row.failure == FailureKind.POD_REPLACED
            assert run.attempt == (2 if role == "solve" else 1)

    played(main)


class BaitedPods(Pods):
    """alive: of the first sessions' decoys; afterwards one is."""

    def __init__(self, *alive: tuple[str, ...]) -> None:
        super().__init__()
        self._alive = list(alive)

    async def decoys(self) -> Decoys:
        alive = self._alive.pop(0) if self._alive else ("10.0.0.1:443",)
        if not alive:
            raise SandboxError("isolation: nothing is alive")
        return Decoys(at=5.0, alive=alive, silent=("10.0.0.2:80",))


def test_what_was_alive_outside_is_kept_of_every_session(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, pods := BaitedPods()) as runtime:
            run = await only_run(runtime)
            assert run.grade is GradeState.SCORED
            for subject in pods.started:
                kept = await runtime.objects.get(layout.decoys_key(runtime.tenant, subject))
                assert json.loads(kept)["alive"] == ["10.0.0.1:443"]

    played(main)


def test_a_gate_without_a_living_decoy_is_infrastructure(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, pods := BaitedPods(())) as runtime:
            run = await only_run(runtime)
            assert (run.grade, run.attempt) == (GradeState.SCORED, 2)
            first = (await result(runtime)).attempts[0]
            assert (first.kind, first.detail) == (
                FailureKind.SANDBOX_START,
                "isolation: nothing is alive",
            )
            assert pods.started_of("solve")[0] not in [h.subject for h in await pods.sessions()]

    played(main)


def test_sessions_tell_their_folders_before_their_shims_are_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, pods := Pods()) as runtime:
            await only_run(runtime)
        solving, extracting_ = pods.sessions_seen[0], pods.sessions_seen[1]
        assert [(m.at, m.read_only) for m in solving.mounts] == [("/workspace", False)]
        assert [(m.at, m.read_only) for m in extracting_.mounts] == [
            ("/workspace", True),
            ("/case", True),
            ("/extract", True),
            ("/output", False),
            ("/scratch", False),
        ]

    played(main)


def test_a_driver_looks_at_the_shards_that_it_holds(tmp_path: Path) -> None:
    async def main() -> None:
        pods = Pods()
        async with opened(tmp_path, pods) as runtime:
            driver = ShardDriver(runtime, own_pools(runtime))
            lease = await runtime.store.take_lease(shards=range(10))
            async with driver.at_work():
                await driver.hold(lease)
                await driver.give(range(5))
                pods.cannot_tell = True
                await driver.give([5])
        assert pods.shards == [
            frozenset(range(10)),
            frozenset(range(5, 10)),
            frozenset(range(6, 10)),
        ]

    played(main)


def test_the_steward_sweeps_what_is_nobodys(tmp_path: Path) -> None:
    async def never_ends(agent: Agent) -> None:
        await agent.start()
        await asyncio.sleep(1e9)

    async def main() -> None:
        pods = Pods(never_ends)
        async with opened(tmp_path, pods) as runtime:
            names = await submitted(runtime, make_spec(limits={"time": "1h"}))
            working = asyncio.create_task(worked(runtime, names), name="worked")
            await runtime.clock.sleep(10)
            lease = await runtime.store.take_lease(shards=[CONTROLLER_SHARD])
            steward = Steward(runtime, lease.epoch)
            await steward.step()
            assert pods.swept == [], "not at once: drivers that start again adopt theirs first"
            await runtime.clock.sleep(SWEEP_EVERY_S + 1)
            await steward.step()
            assert pods.swept[-1] == set(pods.started)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    played(main)
