"""News of the plane reach the supervisor that holds the shard, until it says it has them."""

from __future__ import annotations

import asyncio

from fde_ray.store.runs import Epoch, RunStore, woken
from tests.store.builders import make_inputs, make_part, run_id


async def post_three(store: RunStore, epoch: Epoch) -> None:
    for n in (1, 2, 3):
        await store.open_attempt(run_id(n), epoch, make_inputs(f"{run_id(n)}.1"))
        await store.mark_agent_started(f"{run_id(n)}.1")


async def test_rows_are_read_by_shard_and_place(store: RunStore, epoch: Epoch) -> None:
    await post_three(store, epoch)
    rows = await store.read_inbox()
    assert [(r.shard, r.run_id, r.subject) for r in rows] == [
        (n, run_id(n), f"{run_id(n)}.1") for n in (1, 2, 3)
    ]
    assert await store.read_inbox((1, 3)) == [rows[0], rows[2]]
    assert await store.read_inbox((1, 3), limit=1) == [rows[0]]
    assert await store.read_inbox(after_seq=rows[1].seq) == [rows[2]]
    assert await store.read_inbox(()) == []


async def test_acknowledged_rows_are_gone_and_numbers_are_not_reused(
    store: RunStore, epoch: Epoch, subject: str
) -> None:
    await store.mark_agent_started(subject)
    (row,) = await store.read_inbox()
    await store.ack_inbox([row.seq], epoch)
    await store.ack_inbox([row.seq], epoch)
    await store.ack_inbox([], epoch)
    assert await store.read_inbox() == []
    await store.set_first_score(subject, "a" * 64)
    (later,) = await store.read_inbox(after_seq=row.seq)
    assert later.kind == "score"


async def test_a_driver_whose_shard_has_gone_to_another_swallows_no_news(
    store: RunStore, epoch: Epoch, subject: str
) -> None:
    await store.mark_agent_started(subject)
    (row,) = await store.read_inbox()
    await store.ack_inbox([row.seq], epoch._replace(counter=epoch.counter + 1))
    later = await store.take_lease()
    await store.ack_inbox([row.seq], epoch)
    assert await store.read_inbox() == [row]
    await store.ack_inbox([row.seq], later.epoch)
    assert await store.read_inbox() == []


async def test_extraction_news_go_to_the_shard_of_the_run(store: RunStore, epoch: Epoch) -> None:
    name = f"{run_id(5)}/{'9' * 32}/0.1"
    await store.submit_sweep("local", "x", {}, [])
    await store.open_try(run_id(5), "9" * 32, 0, epoch, make_inputs(name))
    await store.mark_agent_started(name)
    (row,) = await store.read_inbox((5,))
    assert (row.subject, row.run_id) == (name, run_id(5))


async def test_reader_is_woken_after_the_row_is_there(store: RunStore, subject: str) -> None:
    with store.changed.watch(("inbox",)) as event:
        assert await store.read_inbox() == []
        waiting = asyncio.create_task(woken(event, 5), name="waiting")
        await store.mark_agent_started(subject)
        assert await waiting
        assert len(await store.read_inbox()) == 1


async def test_each_new_part_is_told_and_wakes_no_session(store: RunStore, subject: str) -> None:
    with store.changed.watch(("session", subject)) as news:
        for part in (make_part(0), make_part(1), make_part(1)):
            await store.record_part(subject, "final", part)
        assert not news.is_set()
    assert [row.kind for row in await store.read_inbox()] == ["part", "part"]
