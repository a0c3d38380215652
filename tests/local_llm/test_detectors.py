"""Five detectors, each the real model."""

from __future__ import annotations

import pytest

from fde_ray.customer.detection import detect
from fde_ray.llm.http_endpoint import HttpEndpoint
from fde_ray.model.chat import Bill, ChatReply, ChatRequest
from fde_ray.model.clock import SystemClock
from fde_ray.model.profile import Endpoint
from fde_ray.model.states import Role
from fde_ray.protocol.packs import builtin_pack

pytestmark = pytest.mark.local_llm

REPLY_TOKENS = 16
"""A model that never stops by itself would fill the detectors' own limit each time."""
BILL = Bill(run_id="r", subject="r.1", role=Role.DETECTOR, case_id="017")


async def test_detectors_of_a_model_that_answers_badly_leave_ballots_with_a_reason(
    endpoint: Endpoint,
) -> None:
    client = HttpEndpoint(endpoint, SystemClock())

    async def chat(request: ChatRequest) -> ChatReply:
        return await client.complete(request.evolve(max_tokens=REPLY_TOKENS), BILL)

    try:
        ballots = await detect(
            chat, builtin_pack(), ("local/gemma",) * 5, "Which day does the week begin on?"
        )
    finally:
        await client.aclose()
    assert [ballot.model for ballot in ballots] == ["local/gemma"] * 5
    for ballot in ballots:
        assert (ballot.asking is None) == bool(ballot.error)
