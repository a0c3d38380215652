"""What was spent, read from the rows: the same sums as over the rows one by one."""

from __future__ import annotations

import random

from fde_ray.analysis.tallies import merged, tally_of
from fde_ray.metering.calls import CallFinish, CallOutcome
from fde_ray.model.chat import Usage
from fde_ray.model.ledgers import LedgerLine
from fde_ray.model.states import Phase, Role
from fde_ray.store.runs import CallRow, Epoch, RunStore, schema
from fde_ray.store.runs.database import updating
from tests.store.builders import (
    GRADE,
    make_call_finish,
    make_call_start,
    make_inputs,
    make_plan,
    run_id,
)

OUTCOMES: tuple[CallOutcome, ...] = ("ok", "ok", "ok", "unavailable", "rejected", "ambiguous")


def line_of(row: CallRow) -> LedgerLine:
    return LedgerLine.model_validate(row._asdict())


def some_usage(rng: random.Random) -> Usage:
    def tokens(most: int) -> int | None:
        return rng.choice([None, 0, rng.randrange(most)])

    return Usage(
        prompt_tokens=tokens(1000),
        completion_tokens=tokens(1000),
        cached_tokens=tokens(400),
        cache_write_5m_tokens=tokens(400),
        cache_write_1h_tokens=tokens(400),
        reasoning_tokens=tokens(1200),
        source=rng.choice(["provider", "provider_partial", "estimated", "unknown", "offline"]),
    )


async def fill(store: RunStore, calls: int) -> None:
    rng = random.Random(7)
    await store.submit_sweep("local", "demo", {"name": "demo"}, [make_plan(n) for n in range(3)])
    await store.submit_sweep("local", "other", {"name": "other"}, [make_plan(9, grade="8" * 32)])
    for n in range(calls):
        run = run_id(rng.choice([0, 1, 2, 9]))
        subject = rng.choice(
            [f"{run}.1", f"{run}.2", f"{run}/{GRADE}/0.1", f"{run}/{'7' * 32}/0.1"]
        )
        role = rng.choice(list(Role))
        await store.start_call(make_call_start(f"c{n}", subject, role=role, at=float(n // 3)))
        if rng.random() < 0.1:
            continue
        cost = rng.choice([None, 0, rng.randrange(10**12)])
        await store.finish_call(
            CallFinish(
                call_id=f"c{n}",
                try_no=1,
                finished_at=2.0,
                outcome=rng.choice(OUTCOMES),
                usage=some_usage(rng),
                cost_nanousd=cost,
                cost_reason="" if cost is not None else rng.choice(["", "no price for 'm'"]),
            )
        )


async def test_the_sums_of_the_database_are_those_over_the_rows(store: RunStore) -> None:
    await fill(store, 300)
    rows = [row async for page in store.calls_of_sweep("demo") for row in page]
    assert merged(await store.tallies_of_sweep("demo")) == merged(map(tally_of, map(line_of, rows)))
    assert await store.tallies_of_sweep("nobody") == []


async def test_rows_of_an_earlier_version_are_added_up_alike(store: RunStore) -> None:
    await fill(store, 100)
    before = merged(await store.tallies_of_sweep("demo"))
    names = ("usage_source", "cached_tokens", "reasoning_tokens")
    names += ("cache_write_5m_tokens", "cache_write_1h_tokens")
    old = updating(schema.ledger, columns=names)
    await store._db.write(lambda t: t.run(old, **dict.fromkeys(names)))
    assert merged(await store.tallies_of_sweep("demo")) == before


async def test_every_row_of_the_sweep_is_given_once_run_by_run(store: RunStore) -> None:
    await fill(store, 60)
    pages = [page async for page in store.calls_of_sweep("demo")]
    assert [{row.run_id for row in page} for page in pages] == [{run_id(n)} for n in range(3)]
    for page in pages:
        places = [line_of(row).place for row in page]
        assert places == sorted(set(places))
    assert {row.grade_id for page in pages for row in page} == {None, GRADE}
    assert [page async for page in store.calls_of_sweep("nobody")] == []


async def test_sessions_tell_what_their_sandbox_may_use(store: RunStore, epoch: Epoch) -> None:
    await store.submit_sweep("local", "demo", {"name": "demo"}, [make_plan(1)])
    subject = f"{run_id(1)}.1"
    await store.open_attempt(run_id(1), epoch, make_inputs(subject))
    (session,) = await store.sessions_of_sweep("demo")
    assert (session.subject, session.role, session.number) == (subject, "solve", 1)
    assert (session.model, session.cpu, session.memory_bytes) == ("offline/x", 1.0, 1 << 30)
    assert (session.ended_at, session.is_started) == (None, False)
    await store.close_attempt(subject, epoch)
    (session,) = await store.sessions_of_sweep("demo")
    assert session.ended_at is not None


async def test_past_costs_are_those_of_done_runs_of_the_same_system(
    store: RunStore, epoch: Epoch
) -> None:
    await store.submit_sweep("local", "demo", {"name": "demo"}, [make_plan(1), make_plan(2)])
    for n, cost in ((1, 5), (1, 7), (2, 100)):
        call = f"{n}-{cost}"
        await store.start_call(make_call_start(call, f"{run_id(n)}.1"))
        await store.finish_call(make_call_finish(call, cost_nanousd=cost))
    await store.start_call(make_call_start("g", f"{run_id(1)}/{GRADE}/0.1"))
    await store.finish_call(make_call_finish("g", cost_nanousd=None))
    assert await store.past_costs("s", "offline/x", "hidden") == []
    await store.move_run(run_id(1), epoch, Phase.QUEUED, Phase.DONE)
    past = await store.past_costs("s", "offline/x", "hidden")
    assert {one[1:] for one in past} == {(None, 12, 0), (GRADE, 0, 1)}
    assert await store.past_costs("s", "offline/y", "hidden") == []
