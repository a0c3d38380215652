"""What is lost is tried again, what the agent did is graded, and nothing is both."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fde_ray.engine.breakage import is_tried_again
from fde_ray.engine.runtime import Runtime
from fde_ray.engine.sessions import FORGOTTEN_S
from fde_ray.engine.supervisor import GRACE_S
from fde_ray.model.errors import ProviderError, Refusal, SandboxError, StoreError
from fde_ray.model.failures import FAILURES, FailureKind, known_kind
from fde_ray.model.profile import Profile
from fde_ray.model.states import GradeState, Phase, SolveEnd
from fde_ray.protocol.packs import builtin_pack
from fde_ray.store.runs import SweepRun
from tests.engine.chats import FailingChat
from tests.engine.drivers import make_spec, make_stage, marks, opened, result, submitted, worked
from tests.engine.stage import Agent, Stage
from tests.engine.virtual import played

MARKER = builtin_pack().render("heading_marker").strip()


async def vanishes(agent: Agent) -> None:
    await agent.start()


async def only_run(runtime: Runtime, **changes: object) -> SweepRun:
    (status,) = await worked(runtime, await submitted(runtime, make_spec(**changes)))
    (run,) = status.runs
    return run


def losing(lost: int) -> Stage:
    """A stage whose first `lost` shims vanish."""

    async def solve(agent: Agent) -> None:
        await agent.start()
        if agent.number <= lost:
            return
        await agent.say("Done.")
        await agent.deliver({"answer.txt": b"0.5"})

    return make_stage(solve)


def test_a_shim_that_vanishes_without_a_commit_is_followed_by_another_attempt(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with opened(tmp_path, losing(1)) as runtime:
            run = await only_run(runtime)
            assert (run.phase, run.grade, run.attempt) == (Phase.DONE, GradeState.SCORED, 2)
            found = await result(runtime)
            assert [note.kind for note in found.attempts] == [FailureKind.SHIM_LOST, None]

    played(main)


def test_h15_a_run_that_is_lost_again_and_again_ends_in_quarantine(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage(vanishes)
        async with opened(tmp_path, stage, attempts=2) as runtime:
            run = await only_run(runtime)
            assert (run.phase, run.solve_end) == (Phase.QUARANTINED, SolveEnd.INFRA_LOST)
            assert (run.failure, run.score) == (FailureKind.SHIM_LOST.value, None)
            assert len(stage.started) == 2
            assert list((await marks(runtime)).values()) == [("quarantined", "none")]

    played(main)


def test_a_sandbox_that_does_not_start_is_infrastructure(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        stage.refuse_start = [SandboxError("no namespaces")]
        async with opened(tmp_path, stage) as runtime:
            run = await only_run(runtime)
            assert (run.phase, run.attempt) == (Phase.DONE, 2)
            notes = (await result(runtime)).attempts
            assert (notes[0].kind, notes[0].detail) == (FailureKind.SANDBOX_START, "no namespaces")

    played(main)


def test_a_session_start_is_recorded_even_if_its_sandbox_never_starts(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        stage.refuse_start = [SandboxError("no namespaces")] * 3
        async with opened(tmp_path, stage) as runtime:
            run = await only_run(runtime)
            assert run.phase is Phase.QUARANTINED
            attempts = await runtime.store.attempts_of(run.run_id)
            keys = await runtime.objects.list(f"local/runs/{run.run_id[:2]}/{run.run_id}/attempts/")
            started = [key for key in keys if key.endswith("/start.json")]
            assert len(started) == len(attempts) == 3

    played(main)


def test_a_lost_shim_is_noticed_while_news_keep_coming(tmp_path: Path) -> None:
    async def main() -> None:
        stage = losing(1)
        async with opened(tmp_path, stage) as runtime:

            async def rings() -> None:
                while True:
                    topic = ("session", stage.started[0]) if stage.started else ("none",)
                    runtime.store.changed.notify([topic])
                    await runtime.clock.sleep(0.5)

            ringing = asyncio.create_task(rings(), name="rings")
            began = runtime.clock.now()
            run = await only_run(runtime)
            ringing.cancel()
            assert run.attempt == 2
            assert runtime.clock.now() - began < 30

    played(main)


def ending(kind: str, files: dict[str, bytes]) -> Stage:
    async def solve(agent: Agent) -> None:
        await agent.start()
        await agent.exit(kind)
        await agent.deliver(files)

    return make_stage(solve)


@pytest.mark.parametrize("kind", ["agent_error", "agent_resource", "step_limit", "refused"])
@pytest.mark.parametrize("has_files", [True, False], ids=["with_files", "with_nothing"])
def test_rule_16_an_end_of_the_agents_own_is_graded_and_never_rolled_again(
    tmp_path: Path, kind: str, has_files: bool
) -> None:
    async def main() -> None:
        stage = ending(kind, {"answer.txt": b"0.5"} if has_files else {})
        async with opened(tmp_path, stage) as runtime:
            run = await only_run(runtime)
            assert (run.phase, run.solve_end, run.attempt) == (Phase.DONE, SolveEnd(kind), 1)
            assert len(stage.started_of("solve")) == 1
            found = await result(runtime)
            assert found.score == (0.5 if has_files else 0.0)
            assert found.outcome is (None if has_files else FailureKind.NO_ARTIFACT)
            assert not found.timed_out

    played(main)


def test_rule_06_a_run_that_the_clock_ends_is_graded_and_flagged(tmp_path: Path) -> None:
    async def solve(agent: Agent) -> None:
        await agent.start()
        await agent.sleep(11)
        with pytest.raises(Refusal, match="solving has ended"):
            await agent.say("Too late.")
        await agent.deliver({"answer.txt": b"0.5"})

    async def main() -> None:
        stage = make_stage(solve)
        async with opened(tmp_path, stage) as runtime:
            run = await only_run(runtime, limits={"time": "10s"})
            assert (run.phase, run.solve_end) == (Phase.DONE, SolveEnd.TIME_LIMIT)
            found = await result(runtime)
            assert (found.score, found.timed_out) == (0.5, True)
            assert len(stage.started_of("solve")) == 1

    played(main)


def test_rule_16_an_agent_that_delivers_nothing_scores_zero(tmp_path: Path) -> None:
    async def solve(agent: Agent) -> None:
        await agent.start()
        await agent.say("I give up.", delivered=False)
        await agent.deliver({"NOTES.md": b"nothing"})

    async def main() -> None:
        stage = make_stage(solve)
        async with opened(tmp_path, stage) as runtime:
            run = await only_run(runtime)
            assert run.solve_end is SolveEnd.NO_DELIVERY
            found = await result(runtime)
            assert (found.score, found.valid) == (0.0, False)
            assert found.zero_signature == "no_artifact"
            assert stage.started_of("extract") == []

    played(main)


async def asks(agent: Agent) -> None:
    await agent.start()
    await agent.say(f"{MARKER}\n- What is the unit?", delivered=False)
    await agent.say("Done.")
    await agent.deliver({"answer.txt": b"0.5"})


def test_rule_14_a_customer_failure_is_answered_by_the_placeholder_and_flagged(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        chat = FailingChat("customer", ProviderError("down"))
        async with opened(tmp_path, make_stage(asks), chat=chat) as runtime:
            run = await only_run(
                runtime, conditions=["interact_req"], customer={"failure": "placeholder"}
            )
            assert (run.phase, run.attempt) == (Phase.DONE, 1)
            (asked,) = (await result(runtime)).rounds
            assert [question.placeholder for question in asked.questions] == [True]

    played(main)


def test_rule_14_a_customer_failure_loses_the_attempt_if_the_spec_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        chat = FailingChat("customer", ProviderError("down"))
        stage = make_stage(asks)
        async with opened(tmp_path, stage, chat=chat, attempts=2) as runtime:
            run = await only_run(
                runtime, conditions=["interact_req"], customer={"failure": "infra"}
            )
            assert (run.phase, run.attempt) == (Phase.QUARANTINED, 2)
            assert (run.failure, run.detail) == ("customer_failed", "down")
            assert stage.started_of("extract") == []

    played(main)


async def calls_its_model(agent: Agent) -> None:
    await agent.start()
    await agent.chat("hello")
    await agent.say("Done.")
    await agent.deliver({"answer.txt": b"0.5"})


def test_a_request_that_the_provider_rejects_ends_the_run_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        chat = FailingChat(
            "agent", ProviderError("no such model", kind=FailureKind.PROVIDER_REJECTED)
        )
        stage = make_stage(calls_its_model)
        async with opened(tmp_path, stage, chat=chat) as runtime:
            run = await only_run(runtime)
            assert (run.phase, run.attempt, run.failure) == (
                Phase.QUARANTINED,
                1,
                "provider_rejected",
            )
            assert "no such model" in (run.detail or "")
            assert chat.failed == 1

    played(main)


def test_equal_losses_put_a_run_aside_and_different_ones_do_not(tmp_path: Path) -> None:
    async def solve(agent: Agent) -> None:
        await agent.start()
        if agent.number > 4:
            await agent.say("Done.")
            await agent.deliver({"answer.txt": b"0.5"})

    async def main() -> None:
        stage = make_stage(solve)
        # Attempts 1, 3 do not start, 2, 4 vanish: two losses of each of two kinds.
        stage.refuse_start = [SandboxError("no"), None, SandboxError("no"), None]
        async with opened(tmp_path, stage, attempts=3) as runtime:
            run = await only_run(runtime)
            assert (run.phase, run.attempt) == (Phase.DONE, 5)
            kinds = [note.kind for note in (await result(runtime)).attempts]
            start, lost = FailureKind.SANDBOX_START, FailureKind.SHIM_LOST
            assert kinds == [start, lost, start, lost, None]

    played(main)


@pytest.mark.parametrize(
    ("losses", "again"),
    [
        pytest.param(["shim_lost"], True, id="first"),
        pytest.param(["shim_lost"] * 2, True, id="second"),
        pytest.param(["shim_lost"] * 3, False, id="third-alike"),
        pytest.param(["sandbox_start"] * 2 + ["shim_lost"], True, id="other-kinds"),
        pytest.param(["sandbox_start", "pause_cap"] * 4 + ["shim_lost"], False, id="too-many"),
    ],
)
def test_a_run_is_tried_again_until_its_losses_are_equal(losses: list[str], again: bool) -> None:
    assert is_tried_again(FailureKind.SHIM_LOST, losses, Profile(attempts=3)) is again


@pytest.mark.parametrize("kind", [kind for kind in FailureKind if not FAILURES[kind].retried])
def test_what_another_attempt_would_not_mend_is_not_tried_again(kind: FailureKind) -> None:
    assert not is_tried_again(kind, [kind.value], Profile(attempts=3))


def test_an_agent_that_used_up_its_memory_is_graded_even_if_its_shim_dies_then(
    tmp_path: Path,
) -> None:
    async def solve(agent: Agent) -> None:
        await agent.start()
        await agent.exit("agent_resource")

    async def main() -> None:
        stage = make_stage(solve)
        async with opened(tmp_path, stage) as runtime:
            run = await only_run(runtime)
            assert (run.phase, run.solve_end) == (Phase.DONE, SolveEnd.AGENT_RESOURCE)
            assert (run.attempt, run.score) == (1, 0.0)

    played(main)


def test_a_collection_that_cannot_reach_the_store_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            create, away = runtime.objects.create, [True]

            async def refused(key: str, data: bytes) -> bool:
                if away and "/parts/" in key:
                    raise StoreError("503 SlowDown")
                return await create(key, data)

            async def comes_back() -> None:
                await asyncio.sleep(1800)
                away.clear()

            runtime.objects.create = refused  # type: ignore[method-assign]
            back = asyncio.create_task(comes_back(), name="back")
            run = await only_run(runtime)
            await back
            assert (run.phase, run.attempt, run.score) == (Phase.DONE, 1, 0.5)

    played(main)


def test_a_kind_of_a_later_version_is_unforeseen_and_never_a_score() -> None:
    assert known_kind("shim_lost") is FailureKind.SHIM_LOST
    assert known_kind("of_a_later_version") is FailureKind.INTERNAL_ERROR
    rule = FAILURES[FailureKind.INTERNAL_ERROR]
    assert rule.retried
    assert not rule.graded


def test_a_shim_that_hangs_is_lost_after_all_its_limits(tmp_path: Path) -> None:
    async def hangs(agent: Agent) -> None:
        await agent.start()
        await asyncio.Event().wait()

    async def main() -> None:
        stage = make_stage(hangs)
        async with opened(tmp_path, stage, attempts=1) as runtime:
            began = runtime.clock.now()
            (status,) = await worked(runtime, await submitted(runtime, make_spec()))
            (run,) = status.runs
            assert (run.phase, run.failure) == (Phase.QUARANTINED, "shim_lost")
            limits = make_spec().limits
            longest = limits.time + limits.pause_cap + GRACE_S
            assert longest < runtime.clock.now() - began < longest + 2 * FORGOTTEN_S
            assert stage.handle_of(stage.started[0]) is None

    played(main)
