"""How single runs end."""

from __future__ import annotations

from pathlib import Path

from fde_ray.model.base import digest
from fde_ray.model.states import GradeState, Phase
from fde_ray.sandbox.records import SandboxFacts
from tests.engine.drivers import make_spec, make_stage, marks, opened, result, submitted, worked
from tests.engine.stage import Agent
from tests.engine.virtual import played

BOXED = SandboxFacts(runtime="bubblewrap", version="1", limits="cgroup2")


def test_a_delivered_answer_is_extracted_scored_and_marked(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            (status,) = await worked(runtime, await submitted(runtime, make_spec()))
            assert status.is_complete
            found = await result(runtime)
            assert (found.grade, found.score, found.valid) == (GradeState.SCORED, 0.5, True)
            assert [route.route for route in found.routes] == [0, 1, 2]
            (mark,) = (await marks(runtime)).values()
            assert mark == (Phase.DONE.value, GradeState.SCORED.value)

    played(main)


def test_a_run_solved_without_a_sandbox_says_so_whoever_grades_it(tmp_path: Path) -> None:
    async def solve(agent: Agent) -> None:
        await agent.start()
        # From here on as under another driver, which has a sandbox.
        stage.facts = BOXED
        await agent.say("Done, see answer.txt.")
        await agent.deliver({"answer.txt": b"0.5"})

    stage = make_stage(solve)

    async def main() -> None:
        async with opened(tmp_path, stage) as runtime:
            await worked(runtime, await submitted(runtime, make_spec()))
            found = await result(runtime)
            assert found.unsafe_sandbox
            assert found.versions.sandbox["runtime"] == "none"

    played(main)


def test_a_run_graded_without_a_sandbox_says_so_too(tmp_path: Path) -> None:
    stage = make_stage()
    unboxed, stage.facts = stage.facts, BOXED

    async def extract(agent: Agent) -> None:
        stage.facts = unboxed if agent.route == 0 else BOXED
        await copied(agent)

    copied, stage.extract = stage.extract, extract

    async def main() -> None:
        async with opened(tmp_path, stage) as runtime:
            await worked(runtime, await submitted(runtime, make_spec()))
            found = await result(runtime)
            assert found.unsafe_sandbox
            assert found.versions.sandbox["runtime"] == "bubblewrap"

    played(main)


def test_the_record_holds_the_detectors_ballots_and_the_profile(tmp_path: Path) -> None:
    async def solve(agent: Agent) -> None:
        await agent.start()
        if await agent.say("Which gauge counts for the length?") is not None:
            await agent.say("Done, see answer.txt.")
        await agent.deliver({"answer.txt": b"0.5"})

    async def main() -> None:
        async with opened(tmp_path, make_stage(solve)) as runtime:
            spec = make_spec(conditions=("interact_req",))
            await worked(runtime, await submitted(runtime, spec))
            found = await result(runtime)
            (detection,) = found.detections
            assert detection.turn_no == 1
            assert [ballot.model for ballot in detection.ballots] == list(spec.detector_models)
            assert found.versions.profile == digest(runtime.profile)

    played(main)
