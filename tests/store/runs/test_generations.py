from __future__ import annotations

from pathlib import Path

import pytest

from fde_ray.model.errors import Superseded
from fde_ray.store.runs import LeaseOwner, RunStore

BLUE, GREEN = LeaseOwner("sup-0", "vm", 1, "1"), LeaseOwner("sup-0", "vm", 2, "2")


async def test_a_superseded_generation_may_not_claim(tmp_path: Path) -> None:
    async with RunStore(tmp_path / "runs.sqlite") as store:
        blue = await store.begin_generation()
        assert await store.claim_shards(BLUE, among=range(10), generation=blue) is not None
        green = await store.begin_generation()
        assert await store.generation() == green > blue
        with pytest.raises(Superseded):
            await store.claim_shards(BLUE, generation=blue)
        assert await store.claim_shards(GREEN, generation=green) is not None


async def test_a_drained_generation_may_not_claim_before_the_next_one_is_there(
    tmp_path: Path,
) -> None:
    async with RunStore(tmp_path / "runs.sqlite") as store:
        blue = await store.begin_generation()
        await store.end_generation(blue)
        with pytest.raises(Superseded):
            await store.claim_shards(BLUE, generation=blue)
        green = await store.begin_generation()
        assert await store.claim_shards(GREEN, generation=green) is not None


async def test_an_old_generation_cannot_end_a_later_one(tmp_path: Path) -> None:
    async with RunStore(tmp_path / "runs.sqlite") as store:
        blue, green = await store.begin_generation(), await store.begin_generation()
        await store.end_generation(blue)
        assert await store.claim_shards(GREEN, generation=green) is not None
