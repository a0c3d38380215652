"""Planes as processes of their own: readiness, leaving, and archives apart from calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from fde_ray.engine.serving import (
    NoModels,
    PlaneKind,
    PlaneProcess,
    Serving,
    default_addresses,
    grace_doubt,
    grace_s_of,
    opened_process,
    served_until,
)
from fde_ray.gateway import collection
from fde_ray.gateway.admin import Health, admin_app
from fde_ray.gateway.bulk import ingest_app, lean_run_plane_app
from fde_ray.gateway.serve import host_and_port, served_at, served_on_socket
from fde_ray.metering.metrics import CallMetrics
from fde_ray.model.base import sha256_hex
from fde_ray.model.clock import SystemClock
from fde_ray.model.errors import ProviderError, Refusal, UserError
from fde_ray.model.failures import Fault
from fde_ray.model.planes import PlanesProfile
from fde_ray.model.profile import Endpoint, Profile
from fde_ray.model.states import Scope
from fde_ray.shim import plane as shim_plane
from fde_ray.store.runs import RunStore
from tests.gateway.planes import SOLVE, Bench, make_bench
from tests.gateway.test_turns import turn
from tests.store.builders import make_bill, make_commit, make_part

DATA = b"x" * 10
PART = f"/v1/parts/s1/0?sha256={sha256_hex(DATA)}"
PLACES = ("/livez", "/readyz", "/metrics", "/docs", "/openapi.json", "/v1/sweeps", "/v1/runs/x")


def asked(app: object) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://plane")


# readiness


async def test_a_process_is_ready_once_the_store_was_reached_and_not_when_it_leaves() -> None:
    silent: list[float | None] = [None]
    health = Health(lambda: silent[0])
    async with asked(admin_app(health)) as client:
        said = await client.get("/readyz")
        assert (said.status_code, said.json()["ready"]) == (503, False)
        silent[0] = 0.0
        assert (await client.get("/readyz")).status_code == 200
        silent[0] = 900.0
        said = await client.get("/readyz")
        assert (said.status_code, said.json()["store_silent_s"]) == (200, 900.0)
        health.leave()
        said = await client.get("/readyz")
        assert (said.status_code, said.json()["reason"]) == (503, "leaving")
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/metrics")).status_code == 404


async def test_metrics_are_on_the_admin_port() -> None:
    metrics = CallMetrics()
    metrics.refused(Refusal(503, Fault.OURS, "away", code="store_unavailable"))
    async with asked(admin_app(Health(), metrics)) as client:
        said = await client.get("/metrics")
    assert 'fde_ray_refusals_total{code="store_unavailable",fault="ours"} 1.0' in said.text


@pytest.mark.parametrize("path", PLACES)
async def test_ports_of_pods_have_no_control_docs_or_metrics(bench: Bench, path: str) -> None:
    for app in (
        lean_run_plane_app(bench.plane),
        ingest_app(bench.plane),
        bench_app(bench),
    ):
        async with asked(app) as client:
            assert (await client.get(path)).status_code == 404


def bench_app(bench: Bench) -> object:
    from fde_ray.gateway.app import grade_plane_app

    return grade_plane_app(bench.plane)


# leaving


async def test_leaving_lets_long_polls_go_and_takes_no_new_ones(bench: Bench) -> None:
    token = await bench.started()
    await bench.plane.post_turn(token, turn())
    waiting = asyncio.create_task(bench.plane.turn_reply(token, 1, 60.0), name="poll")
    await asyncio.sleep(0.05)
    assert not waiting.done()
    bench.plane.leave()
    async with asyncio.timeout(5):
        assert (await waiting).status == "pending"
        assert (await bench.plane.turn_reply(token, 1, 60.0)).status == "pending"
        await bench.plane.chat(token, wire_chat(), "c1")


def wire_chat() -> object:
    from tests.gateway.test_calls import wire

    return wire()


@pytest.fixture
async def real(tmp_path: Path) -> AsyncIterator[Bench]:
    """A bench in real time: a process breathes by it."""
    clock = SystemClock()
    async with RunStore(tmp_path / "real.db", clock) as store:
        made = await make_bench(tmp_path, store, clock)  # type: ignore[arg-type]
        yield made
        made.objects.close()


@pytest.fixture
async def process(real: Bench, tmp_path: Path) -> AsyncIterator[PlaneProcess]:
    profile = Profile(home=str(tmp_path / "home"))
    serving = Serving(
        PlaneKind.RUN, f"unix:{tmp_path}/run.sock", f"unix:{tmp_path}/admin.sock", grace_s=30
    )
    async with opened_process(profile, serving) as opened:
        opened._plane = real.plane
        yield opened


async def test_a_call_in_flight_is_finished_before_the_process_ends(
    process: PlaneProcess, real: Bench, tmp_path: Path
) -> None:
    bench = real
    token = await bench.started()
    bench.model.gate = asyncio.Event()
    ready, end = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(process.run(end, ready.set), name="process")
    await ready.wait()
    headers = {"authorization": f"Bearer {token}"}
    transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "run.sock"))
    async with httpx.AsyncClient(transport=transport, base_url="http://p", timeout=20) as client:
        body = {"model": "offline/x", "messages": [{"role": "user", "content": "hi"}]}
        call = asyncio.create_task(
            client.post("/v1/chat/completions", json=body, headers=headers), name="call"
        )
        await bench.model.reached.wait()
        end.set()
        while process.health.reason != "leaving":  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert not running.done()
        admin = httpx.AsyncHTTPTransport(uds=str(tmp_path / "admin.sock"))
        async with httpx.AsyncClient(transport=admin, base_url="http://a") as told:
            assert (await told.get("/readyz")).status_code == 503
        bench.model.gate.set()
        assert (await call).json()["choices"][0]["message"]["content"] == "hello 1"
    await running
    assert not (tmp_path / "run.sock").exists()


async def test_a_process_without_keys_calls_no_model() -> None:
    from fde_ray.model.chat import ChatRequest

    request = ChatRequest(model="openai/x", messages=({"role": "user", "content": "hi"},))
    models = NoModels()
    with pytest.raises(ProviderError, match="calls no models"):
        await models.complete(request, make_bill(SOLVE))
    with pytest.raises(ProviderError, match="calls no models"):
        await anext(models.stream(request, make_bill(SOLVE)))
    await models.aclose()


async def test_an_ingest_needs_an_address_in_the_profile(tmp_path: Path) -> None:
    serving = Serving(PlaneKind.INGEST, "127.0.0.1:0", "127.0.0.1:0")
    with pytest.raises(UserError, match=r"planes\.ingest"):
        async with opened_process(Profile(home=str(tmp_path)), serving):
            pass


@pytest.mark.parametrize("kind", list(PlaneKind))
async def test_each_kind_serves_its_own_routes(kind: PlaneKind, tmp_path: Path) -> None:
    profile = Profile(
        home=str(tmp_path / "h"), planes=PlanesProfile(ingest="http://ingest.example:80")
    )
    serving = Serving(kind, f"unix:{tmp_path}/pods.sock", f"unix:{tmp_path}/ops.sock")
    end, found = asyncio.Event(), {}
    async with opened_process(profile, serving) as process:
        ready = asyncio.Event()
        running = asyncio.create_task(process.run(end, ready.set), name="process")
        await ready.wait()
        transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "pods.sock"))
        async with httpx.AsyncClient(transport=transport, base_url="http://p") as client:
            for method, path in (
                ("GET", "/v1/inputs"),
                ("PUT", PART),
                ("POST", "/v1/evaluate"),
                ("GET", "/v1/sweeps"),
                ("GET", "/readyz"),
            ):
                said = await client.request(method, path)
                found[path] = said.json().get("error", {}).get("code", "served")
        end.set()
        await running
    wanted = {
        PlaneKind.RUN: ("no_token", "elsewhere", "no_route", "no_route"),
        PlaneKind.INGEST: ("no_route", "no_token", "no_route", "no_route"),
        PlaneKind.GRADE: ("no_token", "no_token", "no_token", "no_route"),
        PlaneKind.CONTROL: ("no_route", "no_route", "no_route", "no_token"),
    }
    assert tuple(found.values()) == (*wanted[kind], "no_route")


# what is in flight at the end


def serving_of(kind: PlaneKind, grace_s: float | None = None) -> Serving:
    return Serving(kind, "127.0.0.1:0", "127.0.0.1:0", grace_s)


ONE_TRY = Profile(provider_retries=0, endpoints=(Endpoint(match="*", timeout="90s"),))


@pytest.mark.parametrize(
    ("profile", "seconds"),
    [
        # 5 tries of 600 + 3.75 s, 4 waits of 120 s between them
        (Profile(), 59 * 60),
        (Profile(provider_retries=0), 11 * 60),
        (ONE_TRY, 2 * 60),
        # models that no endpoint names go to where they always go
        (ONE_TRY.evolve(endpoints=(Endpoint(match="a/*", timeout="90s"),)), 11 * 60),
        (ONE_TRY.evolve(endpoints=(Endpoint(match="a/*", timeout="2h"),)), 121 * 60),
    ],
)
def test_grace_is_the_longest_call_of_the_profile(profile: Profile, seconds: float) -> None:
    for kind in (PlaneKind.RUN, PlaneKind.GRADE):
        assert grace_s_of(serving_of(kind), profile) == seconds
        assert grace_s_of(serving_of(kind, 7), profile) == 7
        assert grace_doubt(serving_of(kind), profile) is None
        assert grace_doubt(serving_of(kind, seconds), profile) is None
        assert grace_doubt(serving_of(kind, seconds - 1), profile) is not None


def test_a_short_grace_is_doubted_with_the_figures() -> None:
    doubt = grace_doubt(serving_of(PlaneKind.RUN, 1800), Profile())
    assert doubt == ("3540s (5 tries of up to 600s, 120s between them); what is cut may be charged")


@pytest.mark.parametrize(("kind", "grace_s"), [(PlaneKind.INGEST, 300), (PlaneKind.CONTROL, 30)])
def test_planes_that_call_no_model_end_sooner(kind: PlaneKind, grace_s: float) -> None:
    assert grace_s_of(serving_of(kind), Profile()) == grace_s
    assert grace_doubt(serving_of(kind, 1), Profile()) is None


async def test_all_that_is_in_flight_has_one_grace(
    process: PlaneProcess, real: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls whose callers have left have what requests left over."""
    left: list[float] = []

    async def landed(patience_s: float) -> None:
        left.append(patience_s)

    monkeypatch.setattr(process, "_grace_s", 1.0)
    monkeypatch.setattr(process, "_landed", landed)
    token = await real.started()
    real.model.gate = asyncio.Event()
    ready, end = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(process.run(end, ready.set), name="process")
    await ready.wait()
    transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "run.sock"))
    async with httpx.AsyncClient(transport=transport, base_url="http://p", timeout=20) as client:
        body = {"model": "offline/x", "messages": [{"role": "user", "content": "hi"}]}
        headers = {"authorization": f"Bearer {token}"}
        call = asyncio.create_task(
            client.post("/v1/chat/completions", json=body, headers=headers), name="call"
        )
        await real.model.reached.wait()
        end.set()
        async with asyncio.timeout(20):
            await running
        await asyncio.gather(call, return_exceptions=True)
    assert len(left) == 1
    assert left[0] < 0.5
    real.model.gate.set()


async def test_a_process_that_is_asked_to_end_before_it_is_ready_ends(tmp_path: Path) -> None:
    """Its store may be away for as long as it likes."""
    end, told = asyncio.Event(), []
    serving = Serving(PlaneKind.RUN, f"unix:{tmp_path}/r.sock", f"unix:{tmp_path}/a.sock")
    profile = Profile(home=str(tmp_path / "home"))
    end.set()
    async with asyncio.timeout(30):
        await served_until(end, profile, serving, told.append)
    assert told == []
    assert not (tmp_path / "r.sock").exists()


async def test_a_process_whose_store_does_not_answer_ends_when_it_is_asked_to(
    tmp_path: Path,
) -> None:
    end, told = asyncio.Event(), []
    serving = Serving(PlaneKind.RUN, f"unix:{tmp_path}/r.sock", f"unix:{tmp_path}/a.sock")
    away = f"postgresql://x@/y?host={tmp_path}/nowhere"
    profile = Profile.model_validate({"home": str(tmp_path / "home"), "store": away})
    serve = asyncio.create_task(served_until(end, profile, serving, told.append), name="serve")
    await asyncio.sleep(0.3)
    assert not serve.done()
    end.set()
    async with asyncio.timeout(30):
        await serve
    assert told == []


async def test_a_process_serves_until_it_is_asked_to_end(tmp_path: Path) -> None:
    end = asyncio.Event()
    serving = Serving(
        PlaneKind.CONTROL, f"unix:{tmp_path}/r.sock", f"unix:{tmp_path}/a.sock", notice_s=0.1
    )
    told: list[PlaneProcess] = []

    def tell(process: PlaneProcess) -> None:
        told.append(process)
        end.set()

    async with asyncio.timeout(30):
        await served_until(end, Profile(home=str(tmp_path / "home")), serving, tell)
    assert [process.ends_within_s for process in told] == [60.1]


async def test_a_process_that_cannot_begin_says_why(tmp_path: Path) -> None:
    serving = Serving(PlaneKind.CONTROL, f"unix:{tmp_path}/r.sock", "nowhere")
    with pytest.raises(UserError, match="write host:port"):
        await served_until(asyncio.Event(), Profile(home=str(tmp_path / "home")), serving)


# archives apart


async def test_archives_go_to_the_ingest_and_calls_do_not(bench: Bench, tmp_path: Path) -> None:
    ingest = f"unix:{tmp_path}/ingest.sock"
    bench.plane._ingest = ingest
    run_app, bulk_app = lean_run_plane_app(bench.plane), ingest_app(bench.plane)
    async with (
        served_at(run_app, f"unix:{tmp_path}/run.sock"),
        served_at(bulk_app, ingest),
    ):
        secret = bench.signer.bootstrap_secret(SOLVE)
        shim = shim_plane.Plane(f"unix:{tmp_path}/run.sock", SOLVE, secret)
        await asyncio.to_thread(shim.open, "collect")

        def put() -> None:
            kind = "application/octet-stream"
            with shim.exchange("PUT", PART, DATA, content_type=kind) as reply:
                reply.read()

        await asyncio.to_thread(put)
        commit = make_commit(make_part(0, sha256_hex(DATA)), final=False, snapshot="s1")
        await asyncio.to_thread(shim.call, "POST", "/v1/commit", commit.jsonable())
    assert (await bench.store.session(SOLVE)).commit == commit


async def test_a_shim_from_before_the_ingest_learns_its_address(
    bench: Bench, tmp_path: Path
) -> None:
    """It holds a token that named no ingest; the run-plane that comes back has no such routes."""
    address = f"unix:{tmp_path}/run.sock"
    shim = shim_plane.Plane(address, SOLVE, bench.signer.bootstrap_secret(SOLVE))
    async with served_on_socket(lean_run_plane_app(bench.plane), tmp_path / "run.sock"):
        await asyncio.to_thread(shim.open, "collect")
        bench.plane._ingest = f"unix:{tmp_path}/ingest.sock"
        async with served_on_socket(ingest_app(bench.plane), tmp_path / "ingest.sock"):
            with await asyncio.to_thread(shim.exchange, "PUT", PART, DATA) as reply:
                assert reply.status == 200


async def test_one_part_of_a_session_is_in_memory_at_a_time(bench: Bench) -> None:
    token = await bench.token(scope=Scope.COLLECT)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield DATA[:5]
        begun.set()
        await go_on.wait()
        yield DATA[5:]

    async with bench.client(token) as client:
        first = asyncio.create_task(client.put(PART, content=slow()), name="first")
        await begun.wait()
        busy = await client.put(PART, content=DATA)
        go_on.set()
        assert (await first).status_code == 200
        assert (await client.put(PART, content=DATA)).status_code == 200
    assert (busy.status_code, busy.json()["error"]["code"]) == (429, "upload_busy")
    assert busy.json()["error"]["fault"] == "ours"


async def test_an_upload_that_stands_still_gives_its_place_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "UPLOAD_S", 0.05)
    token = await bench.token(scope=Scope.COLLECT)
    from fde_ray.model.errors import Refusal

    with pytest.raises(Refusal) as caught:
        async with bench.plane.uploading(token):
            await asyncio.sleep(10)
    assert (caught.value.status, caught.value.code) == (408, "upload_slow")
    async with bench.plane.uploading(token):
        pass


async def test_a_body_is_not_read_before_its_token_is_good(bench: Bench) -> None:
    async def never() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    app = ingest_app(bench.plane)
    received: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        raise AssertionError("the body was read")

    async def send(message: dict[str, object]) -> None:
        received.append(message)

    path, _, query = PART.partition("?")
    scope = {
        "type": "http",
        "method": "PUT",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"authorization", b"Bearer forged")],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("plane", 80),
        "client": ("pod", 1),
        "root_path": "",
    }
    await app(scope, receive, send)  # type: ignore[arg-type]
    assert received[0]["status"] == 401


# addresses


@pytest.mark.parametrize(
    ("text", "wanted"), [("0.0.0.0:80", ("0.0.0.0", 80)), ("[::1]:8080", ("::1", 8080))]
)
def test_a_place_to_listen_on_is_read(text: str, wanted: tuple[str, int]) -> None:
    assert host_and_port(text) == wanted


@pytest.mark.parametrize("text", ["", "80", ":80", "host:", "host:x", "host:99999", "host:-1"])
def test_no_place_to_listen_on(text: str) -> None:
    with pytest.raises(UserError, match="write host:port"):
        host_and_port(text)


@pytest.mark.parametrize(
    "wrong", ["host:80", "https://host:80", "http://host", "http://host:80/v1", "unix:rel", "", "x"]
)
def test_an_address_that_no_shim_can_use_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"http://host:port|full path"):
        PlanesProfile(run=wrong)


def test_default_sockets_differ_by_kind(tmp_path: Path) -> None:
    from fde_ray.engine.home import home_of

    home = home_of(Profile(home=str(tmp_path)), {})
    every = [one for kind in PlaneKind for one in default_addresses(kind, home)]
    assert len(set(every)) == 8
    assert json.dumps(every).count("unix:") == 8
