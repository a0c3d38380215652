"""G rows of the field reports on who is billed, and what a process that dies leaves."""

from __future__ import annotations

import asyncio
import hashlib
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from fde_ray.engine.serving import NoModels, PlaneKind, Serving, opened_process
from fde_ray.model.profile import Endpoint, Profile
from tests.gateway.conftest import bench, clock, store
from tests.gateway.fleet import COST_NANOUSD, Shim, running_fleet
from tests.gateway.planes import SOLVE, Bench
from tests.gateway.zygote import Zygote
from tests.postgresql import Server
from tests.store.builders import run_id

__all__ = ["bench", "clock", "store"]

OTHER = f"{run_id(2)}.1"


@pytest.fixture
def zygote(tmp_path: Path) -> Iterator[Zygote]:
    made = Zygote(tmp_path / "log")
    yield made
    made.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["KILL", "TERM"])
async def test_g13_every_answered_call_is_in_the_ledger_whatever_ends_the_process(
    tmp_path: Path, postgresql: Server, zygote: Zygote, number: signal.Signals
) -> None:
    name = "g13_" + hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]
    with psycopg.connect(postgresql.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
    rng, url = random.Random(13), postgresql.url(name)
    async with (
        asyncio.timeout(120),
        running_fleet(tmp_path, url, zygote, runs=1, rng=rng, replicas=1) as fleet,
    ):
        fleet.may_end.set()
        shim = Shim(fleet, f"{run_id(1)}.1", rng)
        await shim.play(8)
        fleet.replicas[0].kill(number)
        rows = await fleet.store.calls_of(run_id(1))
    assert {row.call_id for row in rows} == set(shim.answered)
    assert {row.state for row in rows} == {"finished"}
    assert sum(row.cost_nanousd or 0 for row in rows) == 8 * COST_NANOUSD


async def test_g19_attribution_comes_from_the_token_alone(bench: Bench) -> None:
    token = await bench.started()
    forged = {
        "x-run-id": run_id(2),
        "x-fde-subject": OTHER,
        "x-litellm-tags": run_id(2),
        "x-user": OTHER,
        "openai-organization": OTHER,
    }
    body = {
        "model": "offline/x",
        "messages": [{"role": "user", "content": "hi"}],
        "user": OTHER,
        "metadata": {"run_id": run_id(2), "user_api_key": OTHER, "tags": [OTHER]},
        "extra_body": {"user": OTHER},
    }
    async with bench.client(token) as client:
        for _ in range(2):
            said = await client.post("/v1/chat/completions", json=body, headers=forged)
            assert said.status_code == 200, said.text
    assert await bench.store.calls_of(run_id(2)) == []
    rows = await bench.store.calls_of(run_id(1))
    assert [(row.run_id, row.subject) for row in rows] == [(run_id(1), SOLVE)] * 2
    assert all(bill.subject == SOLVE for bill in bench.model.bills)


async def test_g19_a_call_id_of_another_session_reaches_no_reply_of_it(bench: Bench) -> None:
    mine, other = await bench.started(), await bench.started(OTHER)
    body = {"model": "offline/x", "messages": [{"role": "user", "content": "hi"}]}
    said = []
    for token, call_id in ((mine, "c1"), (other, "c1"), (other, f"{SOLVE}:c1")):
        async with bench.client(token) as client:
            reply = await client.post(
                "/v1/chat/completions", json=body, headers={"x-fde-call-id": call_id}
            )
            said.append(reply.json()["choices"][0]["message"]["content"])
    assert said == ["hello 1", "hello 2", "hello 3"]


@pytest.mark.parametrize("kind", [PlaneKind.CONTROL, PlaneKind.INGEST])
async def test_g20_only_planes_that_call_models_hold_keys(kind: PlaneKind, tmp_path: Path) -> None:
    profile = Profile(
        home=str(tmp_path),
        planes={"ingest": "http://127.0.0.1:1"},  # type: ignore[arg-type]
        endpoints=(Endpoint(match="*", base_url="http://127.0.0.1:1", api_key_env="NOT_SET"),),
    )
    serving = Serving(kind, f"unix:{tmp_path}/p", f"unix:{tmp_path}/a")
    async with opened_process(profile, serving) as process:
        assert isinstance(process._runtime.calls._chat, NoModels)


async def test_g20_a_token_is_in_no_row_and_no_object(bench: Bench, tmp_path: Path) -> None:
    token = await bench.started()
    async with bench.client(token) as client:
        body = {"model": "offline/x", "messages": [{"role": "user", "content": "hi"}]}
        await client.post("/v1/chat/completions", json=body)
    await bench.store.close()
    secret = bench.signer.bootstrap_secret(SOLVE)
    for path in [one for one in tmp_path.rglob("*") if one.is_file()]:  # noqa: ASYNC240
        data = path.read_bytes()
        assert token.encode() not in data
        assert secret.encode() not in data
