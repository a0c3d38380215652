"""Whose trouble it is that an extractor's call of the evaluator brings no score."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from fde_ray.engine.evaluations import Evaluations
from fde_ray.model.errors import Refusal, RunFailure, SandboxError, StoreError
from fde_ray.model.failures import FailureKind, Fault
from tests.engine.stage import output, packed
from tests.store.builders import GRADE, run_id


class Stores:
    """All that an evaluation asks of the store, the material and the scorer."""

    def __init__(self, error: RunFailure) -> None:
        self._error = error

    async def session(self, _subject: str) -> Any:
        return SimpleNamespace(run_id=run_id(1), grade_id=GRADE)

    async def plan(self, *_grade: str) -> Any:
        return SimpleNamespace(case_id="017")

    async def scoring(self, _case_id: str) -> None:
        return None

    async def evaluate(self, *_: Any, **__: Any) -> Any:
        raise self._error


async def asked(error: RunFailure, archive: bytes) -> None:
    double = cast("Any", Stores(error))
    await Evaluations(double, double, double).evaluate(f"{run_id(1)}/{GRADE}/0.1", archive)


async def test_a_store_that_is_away_is_not_the_extractors_fault() -> None:
    data, _ = packed(output(0.5))
    with pytest.raises(StoreError, match="away"):
        await asked(StoreError("the store is away"), data)


async def test_a_sandbox_that_is_missing_is_ours() -> None:
    data, _ = packed(output(0.5))
    with pytest.raises(Refusal) as caught:
        await asked(SandboxError("no box", FailureKind.GRADER_SANDBOX), data)
    assert (caught.value.status, caught.value.fault) == (503, Fault.OURS)


async def test_an_archive_that_is_none_is_the_extractors() -> None:
    with pytest.raises(Refusal) as caught:
        await asked(StoreError("never asked"), b"no archive")
    assert (caught.value.status, caught.value.fault) == (400, Fault.AGENT)
