"""A small state folder in which no agent ran: rows and objects, written as the engine does."""

from __future__ import annotations

from pathlib import Path

from fde_ray.engine.findings import write_marks
from fde_ray.engine.runtime import Runtime, opened_runtime
from fde_ray.model.base import sha256_hex
from fde_ray.model.dialogue import Answered, Replied
from fde_ray.model.failures import FailureKind
from fde_ray.model.plan import RunPlan
from fde_ray.model.profile import Profile
from fde_ray.model.result import BudgetNote, RunResult
from fde_ray.model.specs import Condition, System
from fde_ray.model.states import ConditionKind, GradeState, Phase, SolveEnd
from fde_ray.store.objects import layout
from fde_ray.store.runs import Epoch
from fde_ray.store.sweep_runs import write_runs
from tests.analysis.builders import make_result
from tests.analysis.hostile import ATTACK, make_hostile_result
from tests.store.builders import (
    make_call_finish,
    make_call_start,
    make_inputs,
    make_plan,
    make_turn,
    run_id,
)

SWEEP, CALM = "small", "calm"
GOOD, HOSTILE, LOST, WAITING = (run_id(n) for n in (0xA1, 0xA2, 0xA3, 0xA4))
DETAIL = f"disk full {ATTACK}"


def planned(n: int, system: str) -> RunPlan:
    return make_plan(n, sweep=SWEEP).evolve(
        condition=Condition(kind=ConditionKind.INTERACT_REQ),
        system=System(name=system, scaffold="scripted", model="offline/x"),
    )


async def make_home(root: Path) -> None:
    """Five runs of one sweep: scored, scored with hostile text, set aside, waiting, waiting.

    The ids of the last two begin alike.
    """
    names = {0xA1: "good", 0xA2: "hostile", 0xA3: "lost", 0xA4: "waiting", 0x1A4: "later"}
    plans = [planned(n, name) for n, name in names.items()]
    async with opened_runtime(Profile(home=str(root)), environ={}) as runtime:
        store = runtime.store
        await store.submit_sweep("local", SWEEP, {"name": SWEEP}, plans)
        await write_runs(runtime.objects, "local", SWEEP, plans)
        lease = await store.take_lease()
        await _done(runtime, lease.epoch, plans[0], make_result(score=1.0))
        await _done(runtime, lease.epoch, plans[1], make_hostile_result())
        await store.move_run(
            LOST,
            lease.epoch,
            Phase.QUEUED,
            Phase.QUARANTINED,
            failure=FailureKind.SANDBOX_START,
            detail=DETAIL,
        )
        await write_marks(runtime, SWEEP)
        await store.release_lease(lease)


async def make_cut_home(root: Path) -> None:
    """Three runs that are done: a budget stopped one and shortened another; and a sweep without a
    single call."""
    cut = {
        "whole": make_result(score=1.0),
        "stopped": make_result(score=0.5, solve_end=SolveEnd.BUDGET),
        "shortened": make_result(score=1.0, budget=BudgetNote(stopped=False, shortened_calls=2)),
    }
    plans = [planned(0xB1 + n, name) for n, name in enumerate(cut)]
    async with opened_runtime(Profile(home=str(root)), environ={}) as runtime:
        await runtime.store.submit_sweep("local", SWEEP, {"name": SWEEP}, plans)
        await write_runs(runtime.objects, "local", SWEEP, plans)
        lease = await runtime.store.take_lease()
        for plan, one in zip(plans, cut.values(), strict=True):
            await _done(runtime, lease.epoch, plan, one)
        await write_marks(runtime, SWEEP)
        await runtime.store.release_lease(lease)
        await runtime.store.submit_sweep("local", CALM, {"name": CALM}, [planned(0xC1, "calm")])


async def _done(runtime: Runtime, epoch: Epoch, plan: RunPlan, result: RunResult) -> None:
    store, run, grade = runtime.store, plan.run_id, plan.grade_id
    await _solved(runtime, epoch, run)
    own = result.evolve(
        run_id=run, grade_id=grade, sweep=SWEEP, case_id=plan.case_id, system=plan.system.name
    )
    data = own.model_dump_json().encode()
    sha = sha256_hex(data)
    await store.begin_commit(run, grade, epoch, Phase.PROVISIONING, sha)
    await runtime.objects.create(layout.result_key(runtime.tenant, run, grade), data)
    await store.finish_commit(
        run,
        grade,
        epoch,
        sha256=sha,
        state=GradeState.SCORED,
        score=own.score,
        valid=own.valid,
        solve_end=own.solve_end,
        budget_cut=own.budget_cut,
    )


async def _solved(runtime: Runtime, epoch: Epoch, run: str) -> None:
    store, subject = runtime.store, f"{run}.1"
    await store.open_attempt(run, epoch, make_inputs(subject))
    await store.record_turn(subject, make_turn(1, f"Is it so? {ATTACK}\nsecond line"))
    await store.append_event(
        subject, Answered(seq=2, at=1.0, turn_no=1, index=0, answer=f"No. {ATTACK}")
    )
    end = Replied(seq=3, at=2.0, turn_no=1, action="finish", solve_end=SolveEnd.SUBMITTED)
    await store.append_event(subject, end)
    await store.start_call(make_call_start(f"{subject}:c", subject))
    await store.finish_call(make_call_finish(f"{subject}:c", cost_nanousd=1_500_000))
    await store.close_attempt(subject, epoch)
