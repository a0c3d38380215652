"""G18 of the field reports, with whole runs: money that is gone is no score and no wrong end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fde_ray.analysis.tables import run_rows
from fde_ray.engine.controller import Controller, SweepStatus
from fde_ray.engine.findings import findings_of
from fde_ray.engine.runtime import Runtime
from fde_ray.model.errors import Refusal
from fde_ray.model.states import GradeState, Phase, SolveEnd
from tests.engine.drivers import make_spec, make_stage, marks, opened, result, submitted, worked
from tests.engine.money import CALL_USD, FIVE, LONG, MODEL, PricedChat, priced, priced_agent
from tests.engine.stage import Agent, output, route_of
from tests.engine.test_kill_points import MARKER
from tests.engine.virtual import played

UNPRICED = ("acme/unpriced",) * 5
FORGOTTEN_S = 61.0
"""So long a process may go by what it knows of a sweep's budget."""


async def works(agent: Agent) -> None:
    await agent.start()
    try:
        await agent.chat("go on", max_tokens=LONG)
    except Refusal:
        await agent.deliver({})
        return
    await agent.say("Done.")
    await agent.deliver({"answer.txt": b"0.5"})


async def extracts(agent: Agent) -> None:
    await agent.start()
    await agent.chat("extract it", max_tokens=LONG)
    await agent.say("extracted")
    await agent.deliver(output(0.5))


async def asks(agent: Agent) -> None:
    await agent.start()
    await agent.say(f"{MARKER}\n- Which unit is the cost in?", delivered=False)
    await agent.say("Done.")
    await agent.deliver({"answer.txt": b"0.5"})


async def wonders(agent: Agent) -> None:
    await agent.start()
    await agent.say("Which unit is the cost in?", delivered=False)
    await agent.say("Done.")
    await agent.deliver({"answer.txt": b"0.5"})


def budget(usd: float) -> dict[str, Any]:
    return {"scheduling": {"sweep_budget_usd": usd}, "unpriced_models": "allow"}


async def resumed(runtime: Runtime, name: str, usd: float = 1000.0) -> SweepStatus:
    """Give the sweep more money, and go on with it."""
    await runtime.store.set_sweep_policy(name, tenant="local", budget_nanousd=round(usd * 1e9))
    await runtime.clock.sleep(FORGOTTEN_S)
    await Controller(runtime).resume(name)
    (status,) = await worked(runtime, [name])
    return status


def test_g18_runs_whose_agents_find_no_money_are_not_scored_0(tmp_path: Path) -> None:
    """The money ends within the fifth of ten runs."""

    async def main() -> None:
        stage, spec = make_stage(works), priced_agent(repeats=10)
        more = {**priced(tmp_path), **budget(4.6 * CALL_USD)}
        async with opened(tmp_path, stage, chat=PricedChat(), **more) as runtime:
            await worked(runtime, await submitted(runtime, spec))
            found = await findings_of(runtime, "small")
            rows = run_rows(found.results, found.planned)
            told = Counter((row["status"], row["score"]) for row in rows)
            assert told == {("scored", 0.5): 4, ("budget_stopped", None): 6}

    played(main)


def test_g18_a_grade_whose_extractors_find_no_money_is_missing_until_there_is_more(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        stage, spec = make_stage(extract=extracts), make_spec(panel={"models": FIVE})
        chat, more = PricedChat(), {**priced(tmp_path), **budget(2.6 * CALL_USD)}
        async with opened(tmp_path, stage, chat=chat, **more) as runtime:
            (name,) = await submitted(runtime, spec)
            (status,) = await worked(runtime, [name])
            (run,) = status.runs
            assert (run.phase, run.grade) == (Phase.QUARANTINED, GradeState.GRADE_MISSING)
            assert (run.score, run.solve_end) == (None, SolveEnd.SUBMITTED)
            assert run.grade_failure == "budget_exhausted"
            assert "budget" in (run.grade_detail or "")
            assert list((await marks(runtime)).values()) == [("quarantined", "grade_missing")]
            assert (await findings_of(runtime, name)).results == ()
            assert (await resumed(runtime, name)).is_complete
            found = await result(runtime)
            assert (found.score, [route.vote for route in found.routes]) == (0.5, [0.5] * 3)
            assert found.budget_cut is None
            tries = Counter(route_of(subject) for subject in stage.started_of("extract"))
            assert tries == {0: 1, 1: 1, 2: 2}, "what was extracted is not extracted again"
            assert len(stage.started_of("solve")) == 1

    played(main)


def test_g18_a_grade_that_stays_without_money_stays_missing(tmp_path: Path) -> None:
    async def main() -> None:
        stage, spec = make_stage(extract=extracts), make_spec(panel={"models": FIVE})
        more = {**priced(tmp_path), **budget(0.5 * CALL_USD)}
        async with opened(tmp_path, stage, chat=PricedChat(), **more) as runtime:
            (name,) = await submitted(runtime, spec)
            await worked(runtime, [name])
            status = await resumed(runtime, name, 0.6 * CALL_USD)
            assert status.runs[0].grade is GradeState.GRADE_MISSING
            assert status.runs[0].grade_failure == "budget_exhausted"
            assert len(stage.started_of("extract")) == 2
            assert (await resumed(runtime, name)).is_complete

    played(main)


@pytest.mark.parametrize("models", [FIVE, UNPRICED], ids=["spent", "unpriced"])
def test_g18_judges_without_money_leave_the_grade_missing_until_there_is_more(
    tmp_path: Path, models: tuple[str, ...]
) -> None:
    async def main() -> None:
        stage = make_stage(asks)
        spec = make_spec(conditions=["interact_req"], judges=models)
        more = {**priced(tmp_path), **budget(0.5)}
        async with opened(tmp_path, stage, chat=PricedChat(), **more) as runtime:
            (name,) = await submitted(runtime, spec)
            (status,) = await worked(runtime, [name])
            (run,) = status.runs
            assert (run.phase, run.grade) == (Phase.QUARANTINED, GradeState.GRADE_MISSING)
            assert (run.score, run.grade_failure) == (None, "budget_exhausted")
            if models is UNPRICED:
                return
            assert (await resumed(runtime, name)).is_complete
            found = await result(runtime)
            assert found.score == 0.5
            assert found.metrics is not None
            assert found.metrics.recall.value is not None
            assert len(stage.started_of("extract")) == 3, "the routes are kept"

    played(main)


ASKED = {
    "customer": (asks, {"customer": {"model": MODEL, "failure": "infra"}}),
    "customer_with_a_stand_in": (asks, {"customer": {"model": MODEL, "failure": "placeholder"}}),
    "customer_without_a_price": (asks, {"customer": {"model": UNPRICED[0]}}),
    "detectors": (wonders, {"detectors": FIVE}),
}


@pytest.mark.parametrize("who", ASKED)
def test_g18_a_question_that_no_money_can_answer_ends_the_attempt_and_no_run(
    tmp_path: Path, who: str
) -> None:
    solve, changes = ASKED[who]

    async def main() -> None:
        stage, spec = make_stage(solve), make_spec(conditions=["interact_req"], **changes)
        more = {**priced(tmp_path), **budget(0.1)}
        async with opened(tmp_path, stage, chat=PricedChat(), **more) as runtime:
            (name,) = await submitted(runtime, spec)
            (status,) = await worked(runtime, [name])
            (run,) = status.runs
            assert (run.phase, run.solve_end) == (Phase.QUARANTINED, SolveEnd.INFRA_LOST)
            assert (run.score, run.failure) == (None, "budget_exhausted")
            assert list((await marks(runtime)).values()) == [("quarantined", "none")]
            if "price" in who:
                return
            assert (await resumed(runtime, name)).is_complete
            found = await result(runtime)
            assert (found.score, found.budget_cut) == (0.5, None)
            assert [one.kind and one.kind.value for one in found.attempts] == [
                "budget_exhausted",
                None,
            ]

    played(main)
