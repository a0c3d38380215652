"""The engine on a server gives what it gives on a file, to the last byte of its results."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fde_ray.engine.campaign import carried_out
from fde_ray.engine.controller import Controller
from fde_ray.engine.findings import findings_of
from fde_ray.engine.runtime import opened_runtime
from fde_ray.gateway.direct import DirectGateway
from fde_ray.model.profile import Profile
from fde_ray.model.result import canonical
from fde_ray.sandbox.null import NullSandbox
from tests.engine.drivers import CASE, make_spec, two_points
from tests.postgresql import Server

_NUMBERS = itertools.count()


@pytest.fixture
def url(postgresql: Server) -> str:
    """A database that is empty."""
    name = f"engine_{next(_NUMBERS)}"
    with psycopg.connect(postgresql.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
    return postgresql.url(name)


async def results_of(home: Path, store: str | None) -> dict[str, Any]:
    """Carry out a sweep of runs that deliver nothing; return the canonical results."""
    spec = make_spec(repeats=4, limits={"pushes": 0})
    profile = Profile.model_validate(
        {"home": str(home), "store": store, "concurrency": {"runs": 4, "gradings": 4}}
    )
    gateway = DirectGateway()
    async with opened_runtime(
        profile, environ={}, sandbox=NullSandbox(gateway), cases=two_points()
    ) as runtime:
        gateway.connect(runtime.run_plane, runtime.grade_plane)
        await Controller(runtime).submit(spec)
        await runtime.material.keys(CASE)
        (status,) = await carried_out(runtime, [spec.name])
        assert status.is_complete
        found = (await findings_of(runtime, spec.name)).results
        return {result.run_id: canonical(result) for result in found}


async def test_sweep_on_a_server_has_the_results_of_one_on_a_file(tmp_path: Path, url: str) -> None:
    here = await results_of(tmp_path / "file", None)
    there = await results_of(tmp_path / "server", url)
    assert len(here) == 4
    assert json.dumps(here, sort_keys=True) == json.dumps(there, sort_keys=True)
