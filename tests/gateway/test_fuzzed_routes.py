"""Every route of every app, asked for anything: the answer says whose mistake it is, in time.

The routes are read from the apps themselves, so that a new one is asked too.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.routing import Route

from fde_ray.gateway.app import grade_plane_app, run_plane_app
from fde_ray.gateway.control import control_plane_app
from fde_ray.gateway.people import TokenDoor, new_token, token_hash
from fde_ray.model.specs import SweepSpec
from fde_ray.model.states import Scope
from tests.gateway.planes import EXTRACT, SOLVE, Bench
from tests.gateway.test_control import SPEC
from tests.gateway.test_strange_calls import JSON, bodies
from tests.store.builders import make_plan

PLANE: Any = None
"""Routes can be told without a plane behind them."""


async def submit(spec: SweepSpec) -> bool:
    return True


APPS: dict[str, FastAPI] = {
    "run": run_plane_app(PLANE),
    "grade": grade_plane_app(PLANE),
    "control": control_plane_app(PLANE, PLANE, submit),
}
ROUTES = [
    (name, method, route.path)
    for name, app in APPS.items()
    for route in app.routes
    if isinstance(route, Route)
    for method in sorted((route.methods or set()) - {"HEAD"})
]
PART = b"tar"
SHA = hashlib.sha256(PART).hexdigest()
NEARLY: list[dict[str, Any]] = [
    {"subject": SOLVE, "secret": "x", "nonce": "n", "scope": "solve", "serial": 1},
    {"held": ["c1"], "cpu_s": 1.5, "rss_bytes": 1},
    {"turn_no": 1, "channel": "text", "text": "done", "entries": [], "has_deliverable": True},
    {"kind": "agent_error", "detail": "x", "exit_code": 1},
    {
        "snapshot": "final",
        "parts": [{"seq": 0, "sha256": SHA, "size": 3}],
        "tree_hash": "a" * 64,
        "files": 1,
        "size_bytes": 3,
        "skipped": [],
        "final": False,
    },
]
HUGE = st.sampled_from([2**63, -(2**63) - 1, 10**400, 1e308, "\ud800", "\x00", "x" * 5000])


@st.composite
def nearly(draw: st.DrawFn) -> Any:
    """Bodies of the wire with some members replaced by anything, or left out, or new."""
    body = dict(draw(st.sampled_from(NEARLY)))
    for name in draw(st.lists(st.sampled_from([*body, "new"]), max_size=2)):
        body[name] = draw(JSON | HUGE)
    for name in draw(st.lists(st.sampled_from(list(body)), max_size=1)):
        del body[name]
    return body


SPECS = st.sampled_from(
    ["{}", SPEC, SPEC[:-9], SPEC + "a: &a [*a]\n", SPEC.replace("small", "../x")]
)
CONTENT = (
    (nearly() | bodies() | JSON).map(lambda value: json.dumps(value).encode())
    | st.binary(max_size=60)
    | st.text(max_size=30).map(lambda text: text.encode("utf-8", "surrogatepass"))
    | SPECS.map(str.encode)
    | st.just(PART)
)
WORDS = st.sampled_from(
    ["0", "1", "-1", "999999999", "final", "demo", "pause", "..", "%00", "é", "x:y"]
)
SEGMENT = (WORDS | st.text(min_size=1, max_size=12)).map(
    lambda text: quote(text.encode("utf-8", "replace"), safe="")
)
QUERY = st.dictionaries(
    st.sampled_from(["wait_s", "sha256", "alt", "key", "sweep"]),
    st.sampled_from(["0", "-1", "nan", "x", SHA, "sse", "demo"]) | st.text(max_size=8),
    max_size=2,
)
HEADERS = st.dictionaries(
    st.sampled_from(["x-fde-call-id", "content-type", "accept", "x-api-key", "content-length"]),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20),
    max_size=2,
)


@pytest.fixture
async def client(bench: Bench, request: pytest.FixtureRequest) -> httpx.AsyncClient:
    """Someone who may: an agent's shim, a grader's, or a researcher."""
    name, _, path = request.node.callspec.params["route"]
    if name == "grade":
        return bench.client(await bench.token(EXTRACT), grade=True)
    if name == "run":
        is_collecting = re.match("/v1/(parts|commit|events)", path) is not None
        await bench.started()
        return bench.client(await bench.token(SOLVE, Scope.COLLECT if is_collecting else None))
    token, store = new_token(), bench.store
    await store.add_user("ada", "researcher", token_hash(token), tenant="local")
    await store.submit_sweep("local", "mine", {"name": "mine"}, [make_plan(3)])
    await store.claim_sweep("mine", "ada", tenant="local")
    door = TokenDoor(store, "local")
    app = control_plane_app(store, bench.objects, submit, door=door)
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://control",
        headers={"authorization": f"Bearer {token}"},
    )


@pytest.mark.parametrize("route", ROUTES, ids=" ".join)
@settings(
    deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
async def test_a_route_refuses_what_it_cannot_serve(
    bench: Bench, client: httpx.AsyncClient, route: tuple[str, str, str], data: st.DataObject
) -> None:
    _, method, path = route
    path = re.sub(r"\{[^}]*\}", lambda _: data.draw(SEGMENT), path)
    async with asyncio.timeout(20):
        reply = await client.request(
            method,
            path,
            params=data.draw(QUERY),
            content=data.draw(CONTENT),
            headers=data.draw(HEADERS),
        )
    assert reply.status_code < 500, reply.text
    if reply.status_code >= 400:
        error = reply.json()["error"]
        # A part that was spoilt on its way is sent again.
        assert error["fault"] == "agent" or error["code"] == "bad_hash", reply.text


def test_every_kind_of_app_is_asked() -> None:
    counts = {name: sum(1 for one, _, _ in ROUTES if one == name) for name in APPS}
    assert counts["run"] >= 20
    assert counts["grade"] == counts["run"] + 4
    assert counts["control"] >= 8
