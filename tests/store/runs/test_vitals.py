"""How a session stands is asked with each call: many who ask at one time are few reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from fde_ray.model.states import PauseCause
from fde_ray.store.runs import Epoch, RunStore
from fde_ray.store.runs.database import Transaction
from tests.store.builders import make_inputs, run_id

T = TypeVar("T")


async def test_each_caller_learns_of_his_own_session(store: RunStore, epoch: Epoch) -> None:
    subjects = [f"{run_id(n)}.1" for n in (1, 2, 3)]
    for n, subject in enumerate(subjects, 1):
        await store.open_attempt(run_id(n), epoch, make_inputs(subject))
    await store.open_pause(subjects[1], PauseCause.PROVIDER)
    asked = [*subjects, "nobody", subjects[0]]
    found = await asyncio.gather(*map(store.vitals_of, asked))
    assert [one and one.standing.run_attempt for one in found] == [1, 1, 1, None, 1]
    causes = [one and one.open_cause for one in found]
    assert causes == [None, PauseCause.PROVIDER, None, None, None]
    together = await store.vitals(subjects)
    assert [together[subject] for subject in subjects] == found[:3]


async def test_many_askers_are_few_reads_and_none_sees_the_past(
    store: RunStore, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, read = 0, store._db.read

    async def counted(query: Callable[[Transaction], T]) -> T:
        nonlocal reads
        reads += 1
        return await read(query)

    monkeypatch.setattr(store._signs, "_execute", counted)
    found = await asyncio.gather(*(store.vitals_of(subject) for _ in range(100)))
    assert reads <= 2
    assert {one and one.open_cause for one in found} == {None}
    early = asyncio.create_task(store.vitals_of(subject))
    await store.open_pause(subject, PauseCause.OUTAGE)
    late = await store.vitals_of(subject)
    await early
    assert late is not None
    assert late.open_cause is PauseCause.OUTAGE
