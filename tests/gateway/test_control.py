"""The control-plane refuses what is not science and says how sweeps stand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from fde_ray.gateway.control import control_plane_app
from fde_ray.model.errors import UserError
from fde_ray.model.specs import SweepSpec
from fde_ray.store.objects import layout
from fde_ray.store.runs import RunStore
from tests.gateway.planes import Bench
from tests.store.builders import GRADE, PANEL, make_result, run_id

SPEC = f"""
name: small
cases: ["017"]
systems: [{{name: s, scaffold: scripted, model: offline/reference}}]
conditions: [hidden]
customer: {{model: offline/customer}}
panel: {{models: [{", ".join(PANEL)}]}}
"""


@pytest.fixture
async def client(bench: Bench) -> AsyncIterator[httpx.AsyncClient]:
    seen: set[str] = set()

    async def submit(spec: SweepSpec) -> bool:
        if spec.series == "wrong":
            raise UserError("no such case")
        new = spec.name not in seen
        seen.add(spec.name)
        return new

    app = control_plane_app(bench.store, bench.objects, submit)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://control") as made:
        yield made


async def test_a_spec_is_submitted_once(client: httpx.AsyncClient) -> None:
    first = await client.post("/v1/sweeps", content=SPEC)
    again = await client.post("/v1/sweeps", content=SPEC)
    assert (first.status_code, first.json()) == (201, {"name": "small", "new": True})
    assert (again.status_code, again.json()["new"]) == (200, False)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (SPEC + "endpoints: []\n", "line 8: 'endpoints' belongs to the operator's profile"),
        (SPEC + "sandbox: {runtime: none}\n", "belongs to the operator's profile"),
        (SPEC + "home: /tmp/x\n", "belongs to the operator's profile"),
        (SPEC + "colour: red\n", "unknown key 'colour'"),
        (SPEC + "series: wrong\n", "no such case"),
        (SPEC.replace('["017"]', "[17]"), "cases"),
        ("", "empty"),
        ("- a", "mapping"),
        ("a: [", ""),
        ("\x00", ""),
        ("a: " + "[" * 5000, ""),
    ],
)
async def test_a_wrong_spec_is_refused_with_its_line(
    client: httpx.AsyncClient, body: str, reason: str
) -> None:
    response = await client.post("/v1/sweeps", content=body)
    assert response.status_code == 400
    assert reason in response.json()["error"]["reason"]


async def test_a_huge_spec_is_not_read(client: httpx.AsyncClient) -> None:
    assert (await client.post("/v1/sweeps", content=b"x" * 1_000_001)).status_code == 413


async def test_sweeps_and_runs_are_told(client: httpx.AsyncClient) -> None:
    (sweep,) = (await client.get("/v1/sweeps")).json()["sweeps"]
    assert (sweep["name"], sweep["state"], sweep["finished"]) == ("demo", "running", False)
    told = (await client.get("/v1/sweeps/demo")).json()
    assert [run["run_id"] for run in told["runs"]] == [run_id(1), run_id(2)]
    assert told["finished"] is False
    run: dict[str, Any] = (await client.get(f"/v1/runs/{run_id(1)}")).json()
    assert (run["phase"], len(run["attempts"])) == ("provisioning", 1)


async def test_a_sweep_is_paused_resumed_and_cancelled(client: httpx.AsyncClient) -> None:
    for action, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        assert (await client.post(f"/v1/sweeps/demo/{action}")).json()["state"] == state
        assert (await client.get("/v1/sweeps")).json()["sweeps"][0]["state"] == state
    assert (await client.post("/v1/sweeps/demo/explode")).status_code == 404


async def test_a_sweep_with_nothing_left_to_do_is_finished(
    client: httpx.AsyncClient, store: RunStore
) -> None:
    await store.submit_sweep("local", "over", {}, [])
    assert (await client.get("/v1/sweeps/over")).json()["finished"] is True


async def test_results_are_served_as_they_lie_in_the_store(
    client: httpx.AsyncClient, bench: Bench
) -> None:
    result = make_result(1)
    key = layout.result_key("local", run_id(1), GRADE)
    await bench.objects.create(key, result.model_dump_json().encode())
    (got,) = (await client.get("/v1/results?sweep=demo")).json()["results"]
    assert got == result.jsonable()


@pytest.mark.parametrize(
    "path", ["/v1/sweeps/none", "/v1/runs/none", "/v1/results", "/v1/results?sweep=x", "/docs"]
)
async def test_what_is_not_there_is_not_found(client: httpx.AsyncClient, path: str) -> None:
    response = await client.get(path)
    assert response.status_code == 404
    assert response.json()["error"]["fault"] == "agent"
