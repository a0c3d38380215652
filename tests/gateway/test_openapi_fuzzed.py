"""Every operation of our own documents, asked for what fits them and for what does not.

schemathesis reads a document and makes the requests; a real server on loopback answers them. No
answer may be ours to be sorry for, come late, or be another than the document tells.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st

from fde_ray.gateway.app import grade_plane_app, run_plane_app
from fde_ray.gateway.control import control_plane_app
from fde_ray.gateway.openapi import Api, document
from fde_ray.gateway.people import TokenDoor, new_token, token_hash
from fde_ray.gateway.serve import served_on_port
from fde_ray.model.specs import SweepSpec
from fde_ray.model.states import Scope
from fde_ray.store.runs import RunStore, StoreLocation
from tests.gateway.planes import EXTRACT, SOLVE, Bench
from tests.postgresql import Server
from tests.store.builders import ManualClock, make_plan, run_id

ANSWERED_WITHIN_S = 15.0
LONGEST_WAIT_S = 0.05
"""For the reply to a turn, which waits for as long as it is asked to."""
FUZZED: tuple[Api, ...] = ("run-plane", "grade-plane", "control-plane")
OPERATIONS = [
    (api, method, path)
    for api in FUZZED
    for path, methods in document(api)["paths"].items()
    for method in methods
    if api != "grade-plane" or path not in document("run-plane")["paths"]
]
KNOWN = {"name": "mine", "run": run_id(3), "snapshot": "final", "seq": 0, "turn_no": 1}
"""What is there to be found by an address."""


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
async def server(bench: Bench, request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, str]]:
    """Yield where the operation is served, and the token of someone who may."""
    api, _, path = request.node.callspec.params["operation"]
    app, token = await opened(bench, api, path)
    async with served_on_port(app, "127.0.0.1") as port:
        yield f"http://127.0.0.1:{port}", token


async def opened(bench: Bench, api: Api, path: str) -> tuple[FastAPI, str]:
    if api == "grade-plane":
        return grade_plane_app(bench.plane, bench.clock), await bench.started(EXTRACT)
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


class Asker:
    """Sends the cases of one operation. Not for an event loop: it waits for each answer."""

    def __init__(self, api: Api, method: str, path: str, url: str, token: str) -> None:
        import schemathesis

        schemathesis.serializer("application/gzip")(lambda _, value: {"data": value})
        self._url, self._session = url, requests.Session()
        self._session.trust_env = False
        self._headers = {"authorization": f"Bearer {token}"}
        # The token is ours to give; tests of its own try others.
        config = schemathesis.Config.from_dict({"generation": {"with-security-parameters": False}})
        self._schema = schemathesis.openapi.from_dict(document(api), config=config)
        self.operation = self._schema[path][method]

    def asked(self, case: Any) -> None:
        """AssertionError for an answer that is none of the document's, or a fault of ours."""
        from schemathesis.checks import not_a_server_error
        from schemathesis.specs.openapi import checks

        case.query = dict(hastened(case.query or {}))
        reply = case.call(
            self._url, session=self._session, headers=self._headers, timeout=ANSWERED_WITHIN_S
        )
        case.validate_response(
            reply,
            checks=[
                not_a_server_error,
                checks.status_code_conformance,
                checks.content_type_conformance,
                checks.response_headers_conformance,
                checks.response_schema_conformance,
            ],
        )

    def cases(self) -> st.SearchStrategy[Any]:
        """Return requests that fit and that do not, to what is there and to what is not."""
        from schemathesis import GenerationMode

        names = {p.name for p in self.operation.path_parameters}
        known = {name: value for name, value in KNOWN.items() if name in names}
        fits, fails = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
        found = self.operation.as_strategy(fits, path_parameters=known) if known else st.nothing()
        return found | self.operation.as_strategy(fits) | self.operation.as_strategy(fails)

    def edges(self) -> Iterator[Any]:
        """Yield requests at the edges of what fits, and just beyond; always the same."""
        from schemathesis import GenerationMode

        generation = self._schema.config.generation_for(operation=self.operation)
        yield from self._schema.iter_coverage_cases(
            self.operation, generation_modes=list(GenerationMode), generation_config=generation
        )

    def close(self) -> None:
        self._session.close()


def hastened(query: Any) -> Iterator[tuple[str, Any]]:
    for name, value in query.items():
        with contextlib.suppress(TypeError, ValueError):
            if name == "wait_s" and float(value) > LONGEST_WAIT_S:
                yield name, LONGEST_WAIT_S
                continue
        yield name, value


@pytest.mark.parametrize("operation", OPERATIONS, ids=" ".join)
async def test_an_operation_answers_as_its_document_tells(
    server: tuple[str, str], operation: tuple[Api, str, str]
) -> None:
    await asyncio.to_thread(fuzzed, Asker(*operation, *server), 6)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=" ".join)
async def test_an_operation_answers_as_its_document_tells_at_length(
    server: tuple[str, str], operation: tuple[Api, str, str]
) -> None:
    asker = Asker(*operation, *server)
    await asyncio.to_thread(lambda: [asker.asked(case) for case in asker.edges()])
    await asyncio.to_thread(fuzzed, asker, 300)


def fuzzed(asker: Asker, examples: int) -> None:
    @settings(max_examples=examples, derandomize=True, database=None, deadline=None)
    @given(asker.cases())
    def ask(case: Any) -> None:
        asker.asked(case)

    with contextlib.closing(asker):
        ask()


@pytest.mark.parametrize("api", FUZZED)
def test_a_document_is_openapi(api: Api) -> None:
    import schemathesis

    schemathesis.openapi.from_dict(document(api)).validate()


def test_every_api_is_fuzzed() -> None:
    counts = {api: sum(1 for one, _, _ in OPERATIONS if one == api) for api in FUZZED}
    assert counts["run-plane"] >= 20
    assert counts["grade-plane"] == 1
    assert counts["control-plane"] >= 8
