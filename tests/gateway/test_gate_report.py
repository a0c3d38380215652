"""What a pod's shim tells of its isolation gate is kept beside the session, once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fde_ray.store.errors import KeyMissing
from fde_ray.store.objects import layout
from tests.gateway.planes import SOLVE, Bench

GATE: dict[str, Any] = {
    "seconds": 6.25,
    "rounds": 3,
    "forbidden": ["10.96.0.1:443"],
    "opened": ["10.96.0.1:443"],
}


async def kept(bench: Bench) -> Any:
    key = layout.gate_key("local", SOLVE)
    return json.loads(await bench.objects.get(key))


async def test_first_word_on_the_gate_stays(bench: Bench) -> None:
    async with bench.client(await bench.token()) as client:
        for gate in (GATE, GATE | {"seconds": 9.0}):
            assert (await client.post("/v1/started", json={"gate": gate})).status_code == 200
    assert await kept(bench) == GATE


@pytest.mark.parametrize("body", [{}, {"gate": None}])
async def test_session_without_a_gate_leaves_no_word_on_it(bench: Bench, body: Any) -> None:
    async with bench.client(await bench.token()) as client:
        assert (await client.post("/v1/started", json=body)).status_code == 200
    with pytest.raises(KeyMissing):
        await kept(bench)


@pytest.mark.parametrize(
    "gate",
    [
        {},
        "passed",
        GATE | {"seconds": -1},
        GATE | {"seconds": "soon"},
        GATE | {"rounds": 0},
        GATE | {"forbidden": ["x" * 101]},
        GATE | {"opened": ["1.1.1.1:1"] * 101},
        GATE | {"odd": 1},
    ],
)
async def test_malformed_word_starts_nothing(bench: Bench, gate: Any) -> None:
    async with bench.client(await bench.token()) as client:
        assert (await client.post("/v1/started", json={"gate": gate})).status_code == 422
    assert (await bench.store.session(SOLVE)).agent_started_at is None
