"""Whatever an API server answers is an object or one typed fault, within a deadline."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from fde_ray.model.errors import UserError
from fde_ray.sandbox.kubernetes.cache import PodCache
from fde_ray.sandbox.kubernetes.client import KubeClient
from fde_ray.sandbox.kubernetes.faults import MAX_RETRY_AFTER_S, ApiFault, fault_of
from fde_ray.sandbox.kubernetes.views import PodView, pod_view
from fde_ray.sandbox.kubernetes.watching import MAX_LINE, lines, selector
from tests.sandbox.kubernetes.fake_api_server import PODS, FakeApiServer, ScaledClock, failing

ALL = frozenset(range(256))


@asynccontextmanager
async def connected(
    folder: Path, factor: float = 200.0
) -> AsyncIterator[tuple[KubeClient, FakeApiServer]]:
    api = FakeApiServer(ScaledClock(factor))
    async with (
        api.running(),
        KubeClient.opened(api.profile(folder), {}, api.clock, rng=random.Random(0)) as client,
    ):
        yield client, api


@pytest.mark.parametrize(
    ("header", "body", "wait_s"),
    [
        ("2", {}, 2.0),
        ("0", {}, 0.0),
        ("1e9", {}, MAX_RETRY_AFTER_S),
        ("-1", {}, None),
        ("nan", {}, None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", {}, None),
        (None, {"details": {"retryAfterSeconds": 3}}, 3.0),
        (None, {"details": {"retryAfterSeconds": "soon"}}, None),
        (None, {"details": [1]}, None),
        (None, [], None),
    ],
)
def test_time_to_wait_is_what_the_server_says_within_reason(
    header: str | None, body: object, wait_s: float | None
) -> None:
    headers = {} if header is None else {"Retry-After": header}
    assert fault_of(429, headers, json.dumps(body).encode()).retry_after_s == wait_s


@pytest.mark.parametrize("body", [b"", b"\xff\x00", b"[]", b"3", b'{"message": 3}', b"x" * 10**6])
def test_body_of_a_refusal_may_be_anything(body: bytes) -> None:
    fault = fault_of(500, {}, body)
    assert len(fault.detail) < 500
    assert fault.is_transient


@pytest.mark.parametrize("body", [b"", b"no json", b"[1]", b"3", b"\xff\xfe"])
async def test_reply_that_is_no_object_is_tried_again_and_then_a_fault(
    tmp_path: Path, body: bytes
) -> None:
    async with connected(tmp_path) as (client, api):
        api.faults.append(failing("GET", lambda: web.Response(body=body), times=2))
        assert (await client.request("GET", PODS))["kind"] == "PodList"
        api.faults[:] = [failing("GET", lambda: web.Response(body=body))]
        with pytest.raises(ApiFault, match="the API server sent"):
            await client.request("GET", PODS, deadline_s=5)


async def test_refusal_that_lasts_is_told_at_once(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, api):
        with pytest.raises(ApiFault) as caught:
            await client.request("GET", f"{PODS}/nothing")
        assert caught.value.is_absence
        assert api.counts["GET"] == 1


async def test_whatever_is_made_is_checked_field_by_field(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, api):
        pod = {"metadata": {"name": "one"}}
        await client.request("POST", PODS, query={"dryRun": "All"}, body=pod)
        await client.request("GET", f"{PODS}/one")
        asked = [each.query for each in api.requests if each.path.startswith(PODS)]
        assert asked == [{"fieldValidation": "Strict", "dryRun": "All"}, {}]


async def test_server_that_is_gone_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, api):
        api.port, began = 0, api.clock.now()
        client._access.configuration.host = "http://127.0.0.1:9"
        with pytest.raises(ApiFault, match="did not answer"):
            await client.request("GET", PODS, deadline_s=30)
        assert 10 < api.clock.now() - began < 60


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_lines_are_whole_however_they_were_cut(size: int) -> None:
    wanted = ['{"a": "é"}', '{"b": "…"}', '{"c": 3}']
    data = "\n\n".join(wanted).encode() + b"\n" + b'{"cut": '

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(data), size):
            yield data[at : at + size]

    assert [line.decode() async for line in lines(chunks())] == wanted


async def test_line_without_an_end_is_a_fault() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(MAX_LINE // (1 << 20) + 2):
            yield b"x" * (1 << 20)

    with pytest.raises(ApiFault, match="without an end"):
        async for _ in lines(chunks()):
            pass


def test_selector_asks_for_what_is_wanted() -> None:
    ours = "fde-ray/managed=fde-ray"
    assert selector(ALL) == f"{ours},fde-ray/shard"
    assert selector(frozenset({2, 10, 1})) == f"{ours},fde-ray/shard in (1,2,10)"
    assert selector(frozenset()) == f"{ours},fde-ray/shard=none"


def pod(
    name: str, version: str, uid: str = "u", phase: str = "Running", shard: str = "1"
) -> PodView:
    metadata = {
        "name": name,
        "uid": uid,
        "resourceVersion": version,
        "labels": {"fde-ray/shard": shard},
        "annotations": {"fde-ray/subject": f"subject of {name}"},
    }
    return pod_view({"metadata": metadata, "status": {"phase": phase}})


def test_cache_goes_forward_only() -> None:
    cache = PodCache()
    assert cache.seen(pod("a", "5"), 0.0)
    assert not cache.seen(pod("a", "5", phase="Failed"), 0.0)
    assert not cache.seen(pod("a", "4", phase="Failed"), 0.0)
    assert cache.seen(pod("a", "10", phase="Failed"), 0.0), "as numbers, not as text"
    cache.dropped(pod("a", "11"), 1.0)
    assert not cache.seen(pod("a", "9"), 2.0), "an event from before it went"
    gone = cache.gone("u")
    assert (gone and gone.view.version, cache.of_subject("subject of a")) == ("11", None)


def test_cache_keeps_what_was_made_after_a_list_was() -> None:
    cache = PodCache()
    cache.seen(pod("old", "5", "u1"), 0.0)
    cache.seen(pod("new", "50", "u2"), 0.0)
    cache.listed([], ALL, "20", 1.0)
    assert [view.name for view in cache] == ["new"]
    assert cache.gone("u1") is not None
    cache.listed([pod("old", "5", "u1")], ALL, "60", 2.0)
    assert [view.name for view in cache] == ["old"], "a list is right about what it has"


def test_cache_forgets_shards_without_calling_their_pods_gone() -> None:
    cache = PodCache()
    cache.listed([pod("a", "5", "u1"), pod("b", "6", "u2", shard="2")], ALL, "9", 0.0)
    cache.listed([pod("a", "5", "u1")], frozenset({1}), "12", 1.0)
    assert (cache.gone("u2"), cache.named("b")) == (None, None)
    assert (cache.covers(1), cache.covers(2)) == (True, False)


def test_cache_knows_which_pods_need_no_look() -> None:
    cache = PodCache()
    cache.listed([pod("a", "5", "u1"), pod("b", "6", "u2", shard="2")], ALL, "9", 0.0)
    assert cache.calm == {"u1", "u2"}
    cache.seen(pod("a", "10", "u1", phase="Failed"), 1.0)
    assert cache.calm == {"u2"}
    cache.seen(pod("a", "11", "u3"), 2.0)
    assert cache.calm == {"u2", "u3"}
    cache.seen(pod("a", "9", "u1"), 2.0)
    assert cache.calm == {"u2", "u3"}, "news of before it went"
    cache.dropped(pod("a", "12", "u3"), 3.0)
    cache.listed([], frozenset({1}), "20", 4.0)
    assert cache.calm == set()


def test_cache_passes_a_name_from_one_pod_to_the_next() -> None:
    cache = PodCache()
    cache.seen(pod("a", "5", "u1"), 0.0)
    cache.seen(pod("a", "7", "u2"), 1.0)
    assert cache.gone("u1") is not None
    cache.dropped(pod("a", "8", "u1"), 2.0)
    found = cache.named("a")
    assert found is not None
    assert found.uid == "u2"


async def test_a_server_that_never_answers_is_told_soon_with_where_it_was_named(
    tmp_path: Path,
) -> None:
    async with connected(tmp_path) as (client, api):
        await client.greet()

        async def sleeps(request: web.Request) -> web.StreamResponse | None:
            await asyncio.sleep(30)
            return None

        api.faults.append(sleeps)
        with pytest.raises(UserError) as caught:
            await client.greet(within_s=0.2)
    told = str(caught.value)
    assert "the API server did not answer: no reply in time" in told
    assert f"http://127.0.0.1:{api.port}, from context c of {tmp_path}/kubeconfig: see that" in told


@pytest.mark.parametrize(
    ("code", "told"),
    [(503, "see that it runs"), (401, "give credentials that it takes"), (403, None)],
)
async def test_a_greeting_is_one_try(tmp_path: Path, code: int, told: str | None) -> None:
    async with connected(tmp_path) as (client, api):
        api.faults.append(failing("GET", lambda: web.Response(status=code)))
        if told is None:
            await client.greet()
        else:
            with pytest.raises(UserError, match=told):
                await client.greet()
        assert len(api.requests) == 1
