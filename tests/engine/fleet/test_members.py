"""A member begins at a kick, begins anew after trouble, and rests when it is retired."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fde_ray.engine.fleet.config import FleetConfig
from fde_ray.engine.fleet.members import AGAIN_S, Member
from fde_ray.engine.runtime import Runtime
from fde_ray.model.errors import StoreError, Superseded
from fde_ray.model.profile import Profile
from tests.engine.virtual import played


class Scripted(Member):
    """Works by raising what it is told to, then until it is stopped."""

    def __init__(self, home: Path, *errors: Exception) -> None:
        profile = Profile(home=str(home))
        config = FleetConfig(profile=profile, unsafe=True, generation=1, sweeps=(), supervisors=1)
        super().__init__(config, "scripted")
        self._errors, self.begun, self.at_work = list(errors), 0, asyncio.Event()

    async def work(self, runtime: Runtime) -> None:
        self.begun += 1
        if self._errors:
            raise self._errors.pop(0)
        self.at_work.set()
        await asyncio.Event().wait()


def test_many_kicks_begin_the_work_once(tmp_path: Path) -> None:
    async def main() -> None:
        member = Scripted(tmp_path)
        for _ in range(5):
            await member.kick()
        await member.at_work.wait()
        assert (member.begun, (await member.kick()).state) == (1, "working")
        await member.drain()

    played(main)


def test_trouble_is_told_and_the_work_begun_anew(tmp_path: Path) -> None:
    async def main() -> None:
        member = Scripted(tmp_path, StoreError("the store is away"), ValueError("a bug"))
        await member.kick()
        await member.at_work.wait()
        assert member.begun == 3
        assert asyncio.get_running_loop().time() >= 2 * AGAIN_S
        await member.drain()

    played(main)


def test_a_retired_member_begins_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        member = Scripted(tmp_path, Superseded("a later fleet is there"))
        await member.kick()
        assert member._task is not None
        await member._task
        assert (await member.kick()).state == "retired"
        await asyncio.sleep(60)
        assert member.begun == 1

    played(main)


def test_a_drained_member_begins_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        member = Scripted(tmp_path)
        await member.kick()
        await member.at_work.wait()
        await member.drain()
        assert (await member.kick()).state == "retired"
        assert member.begun == 1

    played(main)
