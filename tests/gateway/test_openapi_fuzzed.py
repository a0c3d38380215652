"""Every operation of our own documents, asked for what fits them and for what does not.

schemathesis reads a document and makes the requests; a real server on loopback answers them, and a
scripted provider stands behind it. No answer may be a fault of ours, come late, or be another than
the document tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from fde_ray.gateway.app import grade_plane_app, run_plane_app
from fde_ray.gateway.control import control_plane_app
from fde_ray.gateway.openapi import Api, document
from fde_ray.gateway.people import TokenDoor, new_token, token_hash
from fde_ray.gateway.serve import served_on_port
from fde_ray.llm.router import ModelRouter
from fde_ray.model.profile import Endpoint
from fde_ray.model.specs import SweepSpec
from fde_ray.model.states import Scope
from fde_ray.model.wire import Dialect
from fde_ray.store.runs import RunStore, StoreLocation
from tests.gateway.askers import Asker
from tests.gateway.boxes import BOX, LINE, began, program
from tests.gateway.planes import EXTRACT, SOLVE, Bench, make_bench
from tests.gateway.speakers import MODEL, Speaker
from tests.llm.speeches import SPEECHES
from tests.postgresql import Server
from tests.store.builders import ManualClock, make_plan, run_id

FUZZED: tuple[Api, ...] = ("run-plane", "grade-plane", "control-plane")
OPERATIONS = [
    (api, method, path)
    for api in FUZZED
    for path, methods in document(api)["paths"].items()
    for method in methods
    if api != "grade-plane" or path not in document("run-plane")["paths"]
]
PART = b"tar"
DIALECTS: list[tuple[str, Dialect]] = [
    ("/v1/chat", "chat"),
    ("/v1/responses", "responses"),
    ("/v1/messages", "messages"),
    ("/v1beta/models/{model}", "gemini"),
]


class Served(NamedTuple):
    """known: parts of a request that find what is there."""

    url: str
    token: str
    known: dict[str, Any]


async def submit(spec: SweepSpec) -> bool:
    return True


@pytest.fixture
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> AsyncIterator[RunStore]:
    """On PostgreSQL where there is time for it: it refuses texts and numbers that SQLite takes."""
    location = StoreLocation(str(tmp_path / "runs.db"))
    if request.node.get_closest_marker("slow"):
        server: Server = request.getfixturevalue("postgresql")
        name = f"fuzzed_{uuid.uuid4().hex}"
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        location = StoreLocation(server.url(name))
    async with RunStore.at(location, clock) as opened:
        yield opened


@pytest.fixture
async def bench(tmp_path: Path, store: RunStore, clock: ManualClock) -> AsyncIterator[Bench]:
    made = await make_bench(tmp_path, store, clock, model=MODEL, archives={"visible": "a/b"})
    await made.objects.create("a/b", PART)
    yield made
    made.objects.close()


@pytest.fixture
async def served(bench: Bench, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    api, _, path = request.node.callspec.params["operation"]
    async with AsyncExitStack() as stack:
        dialect = next((one for start, one in DIALECTS if path.startswith(start)), None)
        if dialect is not None:
            await stack.enter_async_context(speaking(bench, dialect))
        app, token = await opened(bench, api, path)
        port = await stack.enter_async_context(served_on_port(app, "127.0.0.1"))
        yield Served(f"http://127.0.0.1:{port}", token, known(bench, path))


async def opened(bench: Bench, api: Api, path: str) -> tuple[FastAPI, str]:
    """Return the app, and the token of someone who may."""
    if api == "grade-plane":
        app = grade_plane_app(bench.plane, bench.clock)
        return app, await (boxed(bench) if "/job" in path else bench.started(EXTRACT))
    if api == "run-plane":
        is_collecting = re.match("/v1/(parts|commit|events)", path) is not None
        await bench.started()
        token = await bench.token(SOLVE, Scope.COLLECT if is_collecting else None)
        return run_plane_app(bench.plane, bench.clock), token
    token, store = new_token(), bench.store
    await store.add_user("ada", "researcher", token_hash(token), tenant="local")
    await store.submit_sweep("local", "mine", {"name": "mine"}, [make_plan(3)])
    await store.claim_sweep("mine", "ada", tenant="local")
    door = TokenDoor(store, "local")
    return control_plane_app(store, bench.objects, submit, door=door), token


async def boxed(bench: Bench) -> str:
    """Return the token of a box that has taken a program."""
    token = await began(bench)
    await bench.store.ask_box("j1", LINE, program("a/b"), 3600.0)
    await bench.store.take_job(BOX)
    return token


def known(bench: Bench, path: str) -> dict[str, Any]:
    secret = bench.signer.bootstrap_secret(SOLVE)
    names = {"name": "mine", "run": run_id(3), "turn_no": 1, "snapshot": "final", "seq": 0}
    names |= {"name": "visible"} if path.startswith("/v1/archives") else {}
    names |= {"name": MODEL} if "/models/" in path else {}
    names |= {"job_id": "j1", "number": 0} if "/job" in path else {}
    in_path = set(re.findall(r"\{([^}]*)\}", path)) & names.keys()
    told: dict[str, Any] = {"path_parameters": {name: names[name] for name in in_path}}
    if path == "/v1/token":
        told["body"] = {"subject": SOLVE, "secret": secret, "nonce": "n", "scope": "solve"}
    if path.startswith("/v1/parts"):
        told |= {"body": PART, "query": {"sha256": hashlib.sha256(PART).hexdigest()}}
    if path == "/v1/results":
        told["query"] = {"sweep": "mine"}
    return {name: value for name, value in told.items() if value}


@asynccontextmanager
async def speaking(bench: Bench, dialect: Dialect) -> AsyncIterator[None]:
    """Put a provider of this dialect behind the plane."""
    provider: Any = None
    async with served_on_port(answering(dialect), "127.0.0.1") as port:
        root = f"http://127.0.0.1:{port}"
        base = f"{root}/v1" if dialect in ("chat", "responses") else root
        told = {"match": "acme/*", "base_url": base, "dialect": dialect, "model": "big-1"}
        endpoint = Endpoint.model_validate({**told, "timeout": "5s"})
        router = ModelRouter([endpoint], bench.model, bench.clock)  # type: ignore[arg-type]
        speaker = Speaker(bench, provider, router)
        yield
        await speaker.calls.aclose()
        await router.aclose()


def answering(dialect: Dialect) -> FastAPI:
    """Return a provider that answers anything, whole or streamed, and counts."""
    speech = next(one for one in SPEECHES if one.dialect == dialect)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    async def answer(request: Request) -> Response:
        path, body = request.url.path, await request.json()
        if "ount" in path:
            return JSONResponse({"input_tokens": 7, "totalTokens": 7})
        if "stream" in path or body.get("stream"):
            return Response(b"".join(speech.events()), media_type="text/event-stream")
        return JSONResponse(speech.reply)

    app.add_route("/{path:path}", answer, methods=["POST"])
    return app


MISSED = {
    ("get", "/v1/turns/{turn_no}"): 404,
    ("delete", "/v1/sweeps/{name}"): 409,
    ("post", "/v1/sweeps"): 400,
}
"""What the simplest request that fits cannot have, because of more than its form."""


@pytest.mark.parametrize("operation", OPERATIONS, ids=" ".join)
async def test_an_operation_answers_as_its_document_tells(
    served: Served, operation: tuple[Api, str, str]
) -> None:
    def ask() -> int:
        with contextlib.closing(Asker(operation, *served)) as asker:
            found = asker.find()
            asker.fuzz(5)
        return found

    found = await asyncio.to_thread(ask)
    missed = MISSED.get(operation[1:])
    assert found < 300 if missed is None else found == missed


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=" ".join)
async def test_an_operation_answers_as_its_document_tells_at_length(
    served: Served, operation: tuple[Api, str, str]
) -> None:
    def ask() -> None:
        with contextlib.closing(Asker(operation, *served)) as asker:
            assert asker.probe()
            asker.fuzz(100)

    await asyncio.to_thread(ask)


@pytest.mark.parametrize("api", FUZZED)
def test_a_document_is_openapi(api: Api) -> None:
    import schemathesis

    schemathesis.openapi.from_dict(document(api)).validate()


def test_every_api_is_fuzzed() -> None:
    counts = {api: sum(1 for one, _, _ in OPERATIONS if one == api) for api in FUZZED}
    assert counts["run-plane"] >= 20
    assert counts["grade-plane"] == 4
    assert counts["control-plane"] >= 8
