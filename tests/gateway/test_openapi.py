"""The documents say what is served: all of it, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import Match, Route

from fde_ray.cli.main import exit_code
from fde_ray.gateway.admin import Health, admin_app
from fde_ray.gateway.app import grade_plane_app, run_plane_app
from fde_ray.gateway.bulk import ingest_app, lean_run_plane_app
from fde_ray.gateway.control import control_plane_app
from fde_ray.gateway.openapi import APIS, Api, document
from fde_ray.metering.metrics import CallMetrics
from fde_ray.model.specs import SweepSpec
from tests.gateway.planes import SOLVE, Bench

PLANE: Any = None
"""Routes can be told without a plane behind them."""


async def submit(spec: SweepSpec) -> bool:
    return True


APPS: list[tuple[Api, FastAPI]] = [
    ("run-plane", run_plane_app(PLANE)),
    ("run-plane", lean_run_plane_app(PLANE)),
    ("ingest", ingest_app(PLANE)),
    ("grade-plane", grade_plane_app(PLANE)),
    ("control-plane", control_plane_app(PLANE, PLANE, submit)),
    ("admin", admin_app(Health(), CallMetrics())),
]


def described(api: Api) -> list[tuple[str, str]]:
    return [
        (method.upper(), path)
        for path, operations in document(api)["paths"].items()
        for method in operations
    ]


def serving(app: FastAPI, method: str, path: str) -> Route | None:
    """Return the route that a documented operation reaches; None = none does."""
    asked = {"type": "http", "method": method, "path": re.sub(r"\{[^}]*\}", "x1", path)}
    routes = [route for route in app.routes if isinstance(route, Route)]
    return next((one for one in routes if one.matches(asked)[0] is Match.FULL), None)


@pytest.mark.parametrize(("api", "app"), APPS, ids=[api for api, _ in APPS])
def test_every_route_is_described_and_nothing_else(api: Api, app: FastAPI) -> None:
    reached = [serving(app, *operation) for operation in described(api)]
    assert None not in reached, described(api)[reached.index(None)]
    assert {id(route) for route in reached} == {id(route) for route in app.routes}


def test_every_api_is_held_to_an_app() -> None:
    assert {api for api, _ in APPS} == set(APIS)


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "$ref":
                yield inner
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


@pytest.mark.parametrize("api", APIS)
def test_a_document_is_whole(api: Api) -> None:
    told = document(api)
    for reference in references(told):
        at: Any = told
        for name in reference.removeprefix("#/").split("/"):
            at = at[name]
    operations = [one for path in told["paths"].values() for one in path.values()]
    names = [one["operationId"] for one in operations]
    assert len(set(names)) == len(names)
    for path, methods in told["paths"].items():
        for one in methods.values():
            in_path = {p["name"] for p in one.get("parameters", ()) if p["in"] == "path"}
            assert in_path == set(re.findall(r"\{([^}]*)\}", path)), path


def test_a_duration_is_described_as_people_write_it() -> None:
    limits = document("control-plane")["components"]["schemas"]["Limits"]["properties"]
    for name in ("time", "memory"):
        assert limits[name]["type"] == "string"
        assert re.search(limits[name]["pattern"], limits[name]["default"])


async def test_the_control_plane_alone_serves_its_document(bench: Bench) -> None:
    app = control_plane_app(bench.store, bench.objects, submit)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://control"
    ) as people:
        assert (await people.get("/openapi.json")).json() == document("control-plane")
    async with bench.client(await bench.started(SOLVE)) as pod:
        assert (await pod.get("/openapi.json")).status_code == 404


@pytest.mark.parametrize("api", APIS)
def test_any_document_is_printed(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["serve", "openapi", "--plane", api]) == 0
    assert json.loads(capsys.readouterr().out) == document(api)


def test_an_unknown_port_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["serve", "openapi", "--plane", "dashboard"]) == 2
    assert "run-plane" in capsys.readouterr().err
