"""The plane tries a provider again before its agent has seen a byte; the shim never does."""

from __future__ import annotations

from typing import Any

import pytest

from fde_ray.gateway.messages import Heartbeat
from fde_ray.model.errors import ProviderError
from tests.gateway.planes import SOLVE, Bench
from tests.gateway.test_calls import BUSY, refused, wire
from tests.store.builders import run_id

DOWN = ProviderError("down", status=503)
CUT = ProviderError("cut", uncertain=True)


@pytest.fixture
def patient(bench: Bench) -> Bench:
    """A plane that tries twice more."""
    bench.plane._calls._retries = 2
    return bench


async def states(bench: Bench) -> list[tuple[int, str]]:
    return [(row.try_no, row.state) for row in await bench.store.calls_of(run_id(1))]


async def streamed(bench: Bench, token: str, call_id: str) -> list[Any]:
    return [piece async for piece in bench.plane.chat_stream(token, wire(stream=True), call_id)]


async def test_provider_that_is_back_in_time_is_not_told_of_and_its_absence_is_not_charged(
    patient: Bench,
) -> None:
    token = await patient.started()
    patient.model.errors = [BUSY, DOWN]
    began = patient.clock.at
    reply = await patient.plane.chat(token, wire(), "c")
    assert reply.text == "hello 3"
    waited = patient.clock.at - began
    assert waited >= 3
    assert await states(patient) == [(1, "failed"), (2, "failed"), (3, "finished")]
    beat = await patient.plane.heartbeat(token, Heartbeat())
    assert beat.charged_s == 0
    assert beat.paused_s == pytest.approx(waited)
    assert {pause.cause.value for pause in await patient.store.pauses(SOLVE)} == {"provider"}


async def test_provider_that_stays_away_is_told_of_after_all_tries(patient: Bench) -> None:
    token = await patient.started()
    patient.model.errors = [DOWN, CUT, BUSY]
    refusal = await refused(patient.plane.chat(token, wire(), "c"))
    assert (refusal.status, refusal.fault.value) == (503, "provider")
    assert await states(patient) == [(1, "failed"), (2, "ambiguous"), (3, "failed")]
    assert (await patient.plane.chat(token, wire(), "c")).text == "hello 4"


async def test_stream_is_tried_again_until_its_first_byte_and_not_after(patient: Bench) -> None:
    token = await patient.started()
    patient.model.errors = [DOWN]
    assert await streamed(patient, token, "early")
    assert await states(patient) == [(1, "failed"), (2, "finished")]
    patient.model.errors, patient.model.cut_after = [CUT], 1
    with pytest.raises(Exception, match="cut"):
        await streamed(patient, token, "late")
    assert len(patient.model.sent) == 3
