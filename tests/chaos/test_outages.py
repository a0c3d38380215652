"""A store that is away, and a clock that jumps, cost time and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fde_ray.model.errors import StoreError
from fde_ray.model.result import canonical
from tests.engine.drivers import make_spec, make_stage, opened, result, submitted, worked
from tests.engine.stage import Agent
from tests.engine.virtual import LoopClock, played

from .effects import fence
from .peers import driving, peer, settled

SPEC = make_spec("small", limits={"time": "1h"})
BEGINS_S = 20.0


async def takes_a_while(agent: Agent) -> None:
    await agent.start()
    await agent.sleep(30)
    await agent.say("Done, see answer.txt.")
    await agent.sleep(30)
    await agent.deliver({"answer.txt": b"0.5"})


class Outage:
    """Raises in place of every effect between two moments."""

    def __init__(self, begins_s: float, lasts_s: float) -> None:
        self._begins_s, self._ends_s = begins_s, begins_s + lasts_s
        self.failed = 0

    @contextmanager
    def passing(self, interface: str, method: str) -> Iterator[None]:
        if self._begins_s <= asyncio.get_running_loop().time() < self._ends_s:
            self.failed += 1
            raise StoreError("away")
        yield


@pytest.mark.parametrize("interface", ["store", "objects"])
@pytest.mark.parametrize("lasts_s", [40.0, 70.0])
def test_a_store_that_is_away_costs_no_attempt(
    tmp_path: Path, interface: str, lasts_s: float
) -> None:
    async def main() -> None:
        stage, outage = make_stage(takes_a_while), Outage(BEGINS_S, lasts_s)
        async with opened(tmp_path, stage) as runtime:
            names = await submitted(runtime, SPEC)
            fence(outage, interface, getattr(runtime, interface))
            await worked(runtime, names)
            found = await result(runtime)
            assert (found.score, len(found.attempts)) == (0.5, 1)
            assert outage.failed > 0 or interface == "objects"
        await stage.aclose()

    played(main)


def test_a_driver_that_comes_back_after_its_lease_was_taken_changes_nothing(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        stage, outage = make_stage(takes_a_while), Outage(BEGINS_S, 70.0)
        async with (
            opened(tmp_path, stage) as gateway,
            peer(tmp_path, stage) as cut_off,
            peer(tmp_path, stage) as other,
        ):
            (name,) = await submitted(gateway, SPEC)
            async with driving(cut_off, name):
                fence(outage, "store", cut_off.store)
                await asyncio.sleep(BEGINS_S + 65)
                async with driving(other, name):
                    await settled(gateway, name)
                assert outage.failed > 0
            found = await result(gateway)
            assert (found.score, len(found.attempts)) == (0.5, 1)
            assert len(stage.started) == len(set(stage.started))
        await stage.aclose()

    played(main)


class JumpingClock(LoopClock):
    """The clock of a machine whose time was set `by_s` seconds on, BEGINS_S after its start."""

    def __init__(self, by_s: float) -> None:
        super().__init__()
        self._by_s = by_s

    def now(self) -> float:
        jumped = asyncio.get_running_loop().time() >= BEGINS_S
        return super().now() + (self._by_s if jumped else 0.0)


@pytest.mark.parametrize("by_s", [-3600.0, -30.0, 30.0, 600.0])
def test_a_clock_that_jumps_changes_no_result(tmp_path: Path, by_s: float) -> None:
    async def main() -> None:
        stage = make_stage(takes_a_while)
        async with opened(tmp_path, stage, clock=JumpingClock(by_s)) as runtime:
            await worked(runtime, await submitted(runtime, SPEC))
            found = await result(runtime)
        async with opened(tmp_path / "calm", make_stage(takes_a_while)) as runtime:
            await worked(runtime, await submitted(runtime, SPEC))
            assert canonical(found) == canonical(await result(runtime))
        assert len(found.attempts) == 1
        assert found.charged_s is None or found.charged_s >= 0
        assert found.paused_s is None or found.paused_s >= 0
        await stage.aclose()

    played(main)
