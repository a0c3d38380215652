"""A person who stops a command hears that it was heard, when its end takes a while."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from fde_ray.cli.running import LOOK_S, LOOKS, _stopping_told


async def _stopped(held_s: float) -> None:
    async def work() -> None:
        with _stopping_told():
            try:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.sleep(60), 0.3)  # this cancels in passing
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(held_s)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_a_stop_that_lasts_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    await _stopped(LOOK_S * LOOKS + 0.5)
    assert capsys.readouterr().err.count("stopping: what is held is given back") == 1


async def test_a_quick_stop_is_not_spoken_of(capsys: pytest.CaptureFixture[str]) -> None:
    await _stopped(0.1)
    assert capsys.readouterr().err == ""
