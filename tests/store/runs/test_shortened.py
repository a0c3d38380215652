"""What the rows say of runs that a budget cut: how many replies, and what the result said."""

from __future__ import annotations

from typing import Any

import pytest

from fde_ray.metering.calls import CallFinish
from fde_ray.model.chat import ChatReply, Usage
from fde_ray.model.states import BudgetCut, GradeState, Phase, Role, SolveEnd
from fde_ray.store.runs import Epoch, RunStore
from tests.store.builders import GRADE, SHA, make_call_finish, make_call_start, run_id
from tests.store.runs.test_rebuilding import make_call, make_run

RUN = run_id(1)
SUBJECT, EARLIER = f"{RUN}.2", f"{RUN}.1"


def ended(call_id: str, reason: str = "stop", tokens: int = 10) -> CallFinish:
    usage = Usage(prompt_tokens=3, completion_tokens=tokens, source="provider")
    reply = ChatReply(message={}, finish_reason=reason, model="x", usage=usage)
    return make_call_finish(call_id).evolve(usage=usage, reply=reply)


async def called(
    store: RunStore, call_id: str, finish: CallFinish, subject: str = SUBJECT, **more: Any
) -> None:
    await store.start_call(make_call_start(call_id, subject, **more))
    await store.finish_call(finish)


async def shortened(store: RunStore, subject: str = SUBJECT) -> int | None:
    return (await store.evidence(RUN, GRADE, subject)).shortened_calls


async def test_replies_that_a_shrunk_limit_cut_are_counted_and_no_others(store: RunStore) -> None:
    await called(store, "cut", ended("cut", "length", 30), shrunk_to=30)
    await called(store, "a little before", ended("a little before", "MAX_TOKENS", 28), shrunk_to=30)
    await called(store, "below", ended("below", "stop", 29), shrunk_to=30)
    await called(store, "its own limit", ended("its own limit", "length", 30))
    assert await shortened(store) == 2
    rows = {row.call_id: row.finish_reason for row in await store.calls_of(RUN)}
    assert rows == {
        "cut": "length",
        "a little before": "MAX_TOKENS",
        "below": "stop",
        "its own limit": "length",
    }


async def test_lost_attempts_and_calls_of_ours_shorten_no_run(store: RunStore) -> None:
    cut = ended("earlier", "length", 30)
    await called(store, "earlier", cut, EARLIER, shrunk_to=30)
    await called(store, "ours", ended("ours", "length", 30), role=Role.CUSTOMER, shrunk_to=30)
    assert (await shortened(store), await shortened(store, EARLIER)) == (0, 1)


@pytest.mark.parametrize("outcome", ["unavailable", "rejected", "ambiguous"])
async def test_a_try_that_nobody_answered_was_cut_by_no_limit(
    store: RunStore, outcome: Any
) -> None:
    await called(store, "c", make_call_finish("c", outcome=outcome), shrunk_to=30)
    await store.start_call(make_call_start("open", SUBJECT, shrunk_to=30))
    assert await shortened(store) == 0


async def test_a_reason_of_any_length_has_room_in_its_row(store: RunStore) -> None:
    await called(store, "c", ended("c", "x" * 10_000), shrunk_to=30)
    (row,) = await store.calls_of(RUN)
    assert len(row.finish_reason or "") == 40


async def test_calls_that_only_a_lost_store_knew_make_it_unknown(store: RunStore) -> None:
    calls = [make_call(1, shrunk_to=3, finish_reason="stop"), make_call(2, request_hash="")]
    await store.restore_runs("local", [make_run(*calls)])
    assert await shortened(store, EARLIER) is None


async def test_rows_of_programs_that_kept_no_reason_are_read_with_care(store: RunStore) -> None:
    counted = {"prompt_tokens": 3, "completion_tokens": 4, "source": "provider"}
    calls = [
        make_call(1, shrunk_to=5, usage=counted),
        make_call(2, shrunk_to=4, usage=counted),
        make_call(3, shrunk_to=5, usage={**counted, "source": "estimated"}),
    ]
    await store.restore_runs("local", [make_run(*calls)])
    assert await shortened(store, EARLIER) == 2


async def test_a_sweep_sees_what_a_budget_did_to_its_runs(store: RunStore, epoch: Epoch) -> None:
    await store.move_run(RUN, epoch, Phase.QUEUED, Phase.JUDGING)
    await store.begin_commit(RUN, GRADE, epoch, Phase.JUDGING, SHA)
    (sweep,) = await store.sweeps()
    views = await store.finish_commit(
        RUN,
        GRADE,
        epoch,
        sha256=SHA,
        state=GradeState.SCORED,
        score=0.5,
        valid=True,
        budget_cut=BudgetCut.SHORTENED,
    )
    assert [run.budget_cut for _, run in views.views] == [BudgetCut.SHORTENED]
    runs = {run.run_id: run.budget_cut for run in await store.runs_of_sweep(sweep.name)}
    assert runs.pop(RUN) is BudgetCut.SHORTENED
    assert set(runs.values()) <= {None}


async def test_a_stop_is_known_before_there_is_a_result(store: RunStore, epoch: Epoch) -> None:
    (sweep,) = await store.sweeps()
    end = {"solve_end": SolveEnd.BUDGET.value}
    await store.move_run(RUN, epoch, Phase.QUEUED, Phase.EXTRACTING, **end)
    run = next(one for one in await store.runs_of_sweep(sweep.name) if one.run_id == RUN)
    assert run.budget_cut is BudgetCut.STOPPED
