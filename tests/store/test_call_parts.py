"""Calls reach the bucket in parts of their replica while their session lasts, each told once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fde_ray.model.errors import StoreError
from fde_ray.store.call_parts import CallParts
from fde_ray.store.objects import FolderStore, layout
from fde_ray.store.runs import RunStore
from fde_ray.store.traces import once_each, read_run
from tests.store.builders import (
    ManualClock,
    make_call_finish,
    make_call_start,
    make_inputs,
    make_plan,
    run_id,
)

RUN = run_id(1)
SUBJECT = f"{RUN}.1"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RunStore]:
    async with RunStore(tmp_path / "runs.db", ManualClock()) as opened:
        await opened.submit_sweep("local", "demo", {}, [make_plan(1)])
        epoch = (await opened.take_lease()).epoch
        await opened.open_attempt(RUN, epoch, make_inputs(SUBJECT))
        yield opened


@pytest.fixture
def objects(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "objects")


@pytest.fixture
def parts(store: RunStore, objects: FolderStore) -> CallParts:
    return CallParts(store, objects, "local", ManualClock())


async def call(store: RunStore, name: str, *, ends: bool = True) -> None:
    await store.start_call(make_call_start(name, SUBJECT))
    if ends:
        await store.finish_call(make_call_finish(name, cost_nanousd=1, raw_usage={"n": 1}))


async def test_each_part_holds_what_has_ended_since_the_last(
    store: RunStore, objects: FolderStore, parts: CallParts
) -> None:
    await call(store, "a")
    await call(store, "open", ends=False)
    assert await parts.write() == 1
    assert await parts.write() == 0
    await call(store, "b")
    assert await parts.write() == 1
    prefix = layout.attempt_prefix("local", SUBJECT) + "calls/"
    names = [key.removeprefix(prefix) for key in sorted(await objects.list(prefix))]
    assert names == [f"{store.boot[:12]}-{n:06d}.jsonl.gz" for n in (0, 1)]
    (attempt,) = (await read_run(objects, "local", RUN)).attempts
    assert sorted(call.call_id for call in attempt.calls) == ["a", "b"]
    assert {(call.replica, str(call.raw_usage)) for call in attempt.calls} == {
        (store.boot, "{'n': 1}")
    }


async def test_session_that_has_closed_needs_no_part(store: RunStore, parts: CallParts) -> None:
    await call(store, "a")
    epoch = (await store.take_lease()).epoch
    await store.close_attempt(SUBJECT, epoch)
    assert await parts.write() == 0


class Broken(FolderStore):
    is_away = True

    async def create(self, key: str, data: bytes) -> bool:
        if self.is_away:
            raise StoreError("away")
        return await super().create(key, data)


async def test_part_that_could_not_be_written_is_in_the_next_one(
    store: RunStore, tmp_path: Path
) -> None:
    objects = Broken(tmp_path / "broken")
    parts = CallParts(store, objects, "local", ManualClock())
    await call(store, "a")
    with pytest.raises(StoreError):
        await parts.write()
    await call(store, "b")
    objects.is_away = False
    assert await parts.write() == 1
    (attempt,) = (await read_run(objects, "local", RUN)).attempts
    assert sorted(call.call_id for call in attempt.calls) == ["a", "b"]


async def test_a_try_that_stands_in_several_files_counts_once(store: RunStore) -> None:
    await call(store, "a", ends=False)
    (begun,) = await store.calls_of(RUN)
    await store.finish_call(make_call_finish("a", cost_nanousd=5))
    (ended,) = await store.calls_of(RUN)
    guessed = ended._replace(state="ambiguous", cost_nanousd=None)
    for order in ([begun, guessed, ended], [ended, guessed, begun], [ended, ended]):
        assert once_each(order) == [ended]
