"""The run-plane of the isolation probes gives away what it says it does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from fde_ray.gateway.proving import Loot, Proof
from fde_ray.model.clock import SystemClock
from fde_ray.store.objects import FolderStore
from fde_ray.store.runs import RunStore

Site = tuple[Proof, Loot, str]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    objects, clock = FolderStore(tmp_path / "objects"), SystemClock()
    async with RunStore(tmp_path / "runs.db", clock) as store:
        proof = Proof(store, objects, clock)
        await proof.prepare()
        async with proof.served("127.0.0.1") as port:
            yield proof, await proof.loot(port), f"http://127.0.0.1:{port}"
    objects.close()


async def test_each_token_is_what_it_is_called(site: Site) -> None:
    proof, loot, url = site
    expected = {loot.token: 200, loot.replayed: 403, loot.expired: 401}
    async with httpx.AsyncClient(base_url=url) as client:
        for token, status in expected.items():
            headers = {"authorization": f"Bearer {token}"}
            reply = await client.get("/v1/inputs", headers=headers)
            assert reply.status_code == status
    seen = (await proof.view()).requests
    assert [(each.path, each.status) for each in seen] == [
        ("/v1/inputs", status) for status in expected.values()
    ]


async def test_the_secret_opens_the_own_run_and_what_is_sealed_stays_so(site: Site) -> None:
    _, loot, url = site
    body = {"subject": loot.subject, "secret": loot.secret, "nonce": "n", "scope": "solve"}
    async with httpx.AsyncClient(base_url=url) as client:
        token = (await client.post("/v1/token", json=body)).json()["token"]
        client.headers["authorization"] = f"Bearer {token}"
        visible = await client.get("/v1/archives/visible")
        sealed = await client.get("/v1/archives/sealed")
    assert (visible.status_code, sealed.status_code) == (200, 404)
    assert loot.sealed not in visible.text
