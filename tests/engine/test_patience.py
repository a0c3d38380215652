"""Trouble of ours that passes costs time, and neither an attempt nor a grade."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fde_ray.engine.patience import PATIENCE_S, Patience, is_passing, wait_before_start
from fde_ray.model.errors import ProviderError, RunFailure, SandboxError, StoreError, UserError
from fde_ray.model.failures import FailureKind
from fde_ray.model.states import GradeState, Phase
from fde_ray.store.errors import KeyMissing
from tests.engine.drivers import make_spec, make_stage, opened, result, submitted, worked
from tests.engine.virtual import LoopClock, played


def failing(method: Callable[..., Any], times: int, error: Exception) -> Callable[..., Any]:
    """Return the method, which does its work and then loses its reply, `times` times."""
    left = [times]

    async def call(*args: Any, **kwargs: Any) -> Any:
        done = await method(*args, **kwargs)
        if left[0]:
            left[0] -= 1
            raise error
        return done

    return call


@pytest.mark.parametrize("method", ["move_run", "session", "move_grade", "begin_commit", "account"])
def test_a_store_whose_replies_are_lost_for_a_moment_costs_no_attempt(
    tmp_path: Path, method: str
) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            names = await submitted(runtime, make_spec())
            lossy = failing(getattr(runtime.store, method), 2, StoreError("no reply"))
            setattr(runtime.store, method, lossy)
            (status,) = await worked(runtime, names)
            (run,) = status.runs
            assert (run.phase, run.grade, run.attempt) == (Phase.DONE, GradeState.SCORED, 1)
            assert len((await result(runtime)).attempts) == 1

    played(main)


def test_sandboxes_that_start_again_after_some_seconds_cost_no_run(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        back_at = asyncio.get_running_loop().time() + 5.0
        probe = stage.probe

        async def away() -> Any:
            if asyncio.get_running_loop().time() < back_at:
                raise SandboxError("the API server restarts")
            return await probe()

        stage.probe = away  # type: ignore[method-assign]
        async with opened(tmp_path, stage, attempts=3) as runtime:
            (status,) = await worked(runtime, await submitted(runtime, make_spec()))
            assert [run.phase for run in status.runs] == [Phase.DONE]

    played(main)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (StoreError("no reply"), True),
        (SandboxError("no answer"), True),
        (KeyMissing("a"), False),
        (ProviderError("down"), False),
        (RunFailure(FailureKind.CUSTOMER_FAILED), False),
        (UserError("mend it"), False),
        (ValueError("a bug"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_stores_and_sandboxes_are_waited_for(error: Exception, passes: bool) -> None:
    assert is_passing(error) is passes


async def waits_for_ever(patience: Patience, error: Exception) -> None:
    while True:
        await patience.wait(error)


def test_patience_ends_with_the_error_when_trouble_lasts() -> None:
    async def main() -> None:
        patience, clock = Patience(LoopClock()), LoopClock()
        began, error = clock.now(), StoreError("away")
        with pytest.raises(StoreError, match="away"):
            await waits_for_ever(patience, error)
        assert PATIENCE_S < clock.now() - began < PATIENCE_S + 60

    played(main)


def test_trouble_after_a_quiet_time_is_new_trouble() -> None:
    async def main() -> None:
        patience, clock = Patience(LoopClock(), limit_s=100.0), LoopClock()
        for _ in range(5):
            await patience.wait(StoreError("away"))
            await clock.sleep(90.0)

    played(main)


def test_waits_before_another_start_grow_up_to_a_bound() -> None:
    waits = [wait_before_start(failures) for failures in range(1, 8)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (2.0, 120.0)
