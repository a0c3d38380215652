"""Reads that are shared by those who ask at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from fde_ray.gateway.gathering import Gathering
from fde_ray.model.errors import StoreError


class Book:
    """Reads are noted; `gate` holds them up."""

    def __init__(self) -> None:
        self.reads: list[tuple[str, ...]] = []
        self.gate: asyncio.Event | None = None
        self.error: Exception | None = None

    async def read(self, keys: Sequence[str]) -> Mapping[str, str]:
        self.reads.append(tuple(keys))
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return {key: f"{key} {len(self.reads)}" for key in keys if key != "none"}


@pytest.fixture
def book() -> Book:
    return Book()


async def test_those_who_ask_at_once_share_one_read(book: Book) -> None:
    gathering: Gathering[str] = Gathering(book.read, 0.01)
    got = await asyncio.gather(*(gathering.get(key) for key in ("a", "b", "a", "none")))
    assert got == ["a 1", "b 1", "a 1", None]
    assert book.reads == [("a", "b", "none")]


async def test_a_question_is_never_answered_by_an_older_read(book: Book) -> None:
    gathering: Gathering[str] = Gathering(book.read, 0.0)
    book.gate = asyncio.Event()
    first = asyncio.create_task(gathering.get("a"))
    while not book.reads:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0)
    second = asyncio.create_task(gathering.get("a"))
    await asyncio.sleep(0.01)
    book.gate.set()
    await asyncio.gather(first, second)
    assert book.reads == [("a",), ("a",)]


async def test_an_error_goes_to_all_who_asked_and_the_next_read_is_tried(book: Book) -> None:
    gathering: Gathering[str] = Gathering(book.read, 0.0)
    book.error = StoreError("away")
    failed = await asyncio.gather(gathering.get("a"), gathering.get("b"), return_exceptions=True)
    assert [type(one) for one in failed] == [StoreError, StoreError]
    book.error = None
    assert await gathering.get("a") == "a 2"


async def test_one_who_leaves_takes_the_answer_from_nobody(book: Book) -> None:
    gathering: Gathering[str] = Gathering(book.read, 0.01)
    leaving, staying = (asyncio.create_task(gathering.get("a")) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == "a 1"
