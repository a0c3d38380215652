"""A run that a budget stopped or shortened is graded, and compared with no other (rule 1)."""

from __future__ import annotations

from pathlib import Path

from fde_ray.analysis.summary import RunCell, summary
from fde_ray.analysis.tables import Row, run_rows
from fde_ray.engine.controller import Controller
from fde_ray.engine.explaining import explained
from fde_ray.engine.findings import findings_of
from fde_ray.engine.runtime import Runtime
from fde_ray.model.errors import Refusal
from fde_ray.model.result import BudgetNote
from fde_ray.model.states import BudgetCut, GradeState, SolveEnd
from tests.engine.drivers import make_stage, opened, result, submitted, worked
from tests.engine.money import CALL_USD, LONG, PricedChat, priced, priced_agent
from tests.engine.stage import Agent, Script
from tests.engine.test_grading import HANG
from tests.engine.test_rebuilding import lose_the_store, rebuilt
from tests.engine.virtual import played

ONE_AND_A_HALF = 1.5 * CALL_USD


def calling(times: int) -> Script:
    """Solve: call the model so often, and deliver what there is when the money is gone."""

    async def solve(agent: Agent) -> None:
        await agent.start()
        try:
            for n in range(times):
                await agent.chat("go on", f"c{n}", max_tokens=LONG)
            await agent.say("Done.")
        except Refusal:
            pass
        await agent.deliver({"answer.txt": b"0.5"})

    return solve


async def seen(runtime: Runtime, name: str = "small") -> tuple[Row, RunCell]:
    """The run in the flat table and in the summary."""
    found = await findings_of(runtime, name)
    (row,) = run_rows(found.results, found.planned)
    (group,) = summary(found.results, found.planned).groups
    return row, group.cases[0].runs[0]


def test_rule_01_a_run_whose_replies_its_budget_cut_short_is_compared_with_no_other(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        stage, spec = make_stage(calling(2)), priced_agent(budget_usd_per_run=ONE_AND_A_HALF)
        async with opened(tmp_path, stage, chat=PricedChat(), **priced(tmp_path)) as runtime:
            (status,) = await worked(runtime, await submitted(runtime, spec))
            found = await result(runtime)
            assert (found.solve_end, found.grade) == (SolveEnd.SUBMITTED, GradeState.SCORED)
            assert found.budget == BudgetNote(stopped=False, shortened_calls=1)
            assert found.budget_cut is BudgetCut.SHORTENED
            row, cell = await seen(runtime)
            assert (row["status"], row["score"], row["valid"]) == ("budget_shortened", None, None)
            assert (row["recorded_score"], row["shortened_calls"]) == (0.5, 1)
            assert cell.score is None
            assert cell.reason == "budget shortened: its budget cut 1 reply of its model short"
            assert status.is_complete
            assert status.cuts == {BudgetCut.SHORTENED: 1}
            told = await explained(runtime, "small", status.runs[0])
            assert any("cut replies of its model short" in said for said in told.reasons)

    played(main)


def test_rule_01_a_limit_that_no_reply_reached_changed_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        stage, spec = make_stage(calling(2)), priced_agent(budget_usd_per_run=ONE_AND_A_HALF)
        chat = PricedChat(writes=60)
        async with opened(tmp_path, stage, chat=chat, **priced(tmp_path)) as runtime:
            (status,) = await worked(runtime, await submitted(runtime, spec))
            rows = await runtime.store.calls_of(status.runs[0].run_id)
            (limit,) = [row.shrunk_to for row in rows if row.shrunk_to is not None]
            assert 60 < limit < LONG
            assert (await result(runtime)).budget == BudgetNote(stopped=False, shortened_calls=0)
            row, _ = await seen(runtime)
            assert (row["status"], row["score"]) == ("scored", 0.5)

    played(main)


def test_rule_01_a_run_that_its_budget_stopped_says_both(tmp_path: Path) -> None:
    async def main() -> None:
        stage, spec = make_stage(calling(3)), priced_agent(budget_usd_per_run=ONE_AND_A_HALF)
        async with opened(tmp_path, stage, chat=PricedChat(), **priced(tmp_path)) as runtime:
            (status,) = await worked(runtime, await submitted(runtime, spec))
            found = await result(runtime)
            assert found.solve_end is SolveEnd.BUDGET
            assert found.budget == BudgetNote(stopped=True, shortened_calls=1)
            assert status.cuts == {BudgetCut.STOPPED: 1}
            row, _ = await seen(runtime)
            assert (row["status"], row["score"], row["recorded_score"]) == (
                "budget_stopped",
                None,
                0.5,
            )

    played(main)


def test_rule_01_a_run_without_a_budget_is_whole_however_long_its_replies(tmp_path: Path) -> None:
    async def main() -> None:
        stage, spec = make_stage(calling(2)), priced_agent()
        async with opened(tmp_path, stage, chat=PricedChat(), **priced(tmp_path)) as runtime:
            (status,) = await worked(runtime, await submitted(runtime, spec))
            assert (await result(runtime)).budget == BudgetNote(stopped=False, shortened_calls=0)
            assert status.cuts == {}

    played(main)


def test_rule_01_a_run_stays_shortened_when_its_store_is_made_again(tmp_path: Path) -> None:
    """Its calls come back from the bucket, and tell it to whoever grades the run then."""

    async def main() -> None:
        stage, spec = make_stage(calling(2)), priced_agent(budget_usd_per_run=ONE_AND_A_HALF)
        stage.evaluate = lambda folder: HANG
        options = {"attempts": 1, **priced(tmp_path)}
        async with opened(tmp_path, stage, chat=PricedChat(), **options) as runtime:
            (name,) = await submitted(runtime, spec)
            (status,) = await worked(runtime, [name])
            assert status.runs[0].grade is GradeState.GRADE_MISSING
        lose_the_store(tmp_path)
        stage.evaluate = stage.scored_by_file
        async with opened(tmp_path, stage, chat=PricedChat(), **options) as runtime:
            await rebuilt(runtime)
            await Controller(runtime).resume(name)
            await worked(runtime, [name])
            assert (await result(runtime)).budget == BudgetNote(stopped=False, shortened_calls=1)
            assert len(stage.started_of("solve")) == 1
        lose_the_store(tmp_path)
        async with opened(tmp_path, stage, chat=PricedChat(), **options) as runtime:
            await rebuilt(runtime)
            assert (await Controller(runtime).status(name)).cuts == {BudgetCut.SHORTENED: 1}

    played(main)
