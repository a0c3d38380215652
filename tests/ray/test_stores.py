"""The demo on Ray gives what it gives in one process: on files, and with its rows in PostgreSQL and
its objects on S3."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fde_ray.model.objects import S3Settings
from fde_ray.model.result import canonical
from fde_ray.store.objects.opening import opened_objects
from fde_ray.store.results import results_of
from tests.e2e.driving import canonical_results, said
from tests.postgresql import running_postgresql
from tests.store.objects.s3_servers import ENVIRON, Servers, make_settings

pytestmark = [pytest.mark.sandbox, pytest.mark.ray, pytest.mark.slow]

SWEEP = ("sweep", "submit", "demo", "--json")
NAME = "demo"
ON_RAY = {"schema": "fde_ray.profile/1", "engine": "ray"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    made = Servers(tmp_path_factory.mktemp("servers"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("inline")
    said(home, *SWEEP)
    return canonical_results(home, NAME)


def test_the_demo_on_ray_ends_as_it_does_in_one_process(
    expected: dict[str, Any], tmp_path: Path
) -> None:
    said(tmp_path, *SWEEP, "--profile", written(ON_RAY, tmp_path))
    assert canonical_results(tmp_path, NAME) == expected


@pytest.mark.parametrize("name", ["moto", "versitygw"])
def test_the_demo_on_ray_and_servers_ends_as_it_does_in_one_process(
    name: str, servers: Servers, expected: dict[str, Any], tmp_path: Path
) -> None:
    settings = with_key_files(make_settings(servers.endpoint(name)), tmp_path)
    with running_postgresql() as server:
        document = {**ON_RAY, "store": server.url(), "objects": settings.jsonable()}
        said(tmp_path, *SWEEP, "--profile", written(document, tmp_path))
    assert asyncio.run(results_on(settings, tmp_path)) == expected
    assert not (tmp_path / "runs.sqlite").exists()
    assert not [path for path in (tmp_path / "objects").rglob("*") if path.is_file()]


def written(profile: dict[str, Any], folder: Path) -> str:
    path = folder / "profile.yaml"
    path.write_text(json.dumps(profile))
    return str(path)


def with_key_files(settings: S3Settings, folder: Path) -> S3Settings:
    """Processes of the sweep do not have the variables of this one."""
    key, secret = folder / "key", folder / "secret"
    key.write_text(ENVIRON["S3_KEY"])
    secret.write_text(ENVIRON["S3_SECRET"])
    return settings.evolve(
        access_key_env=None,
        secret_key_env=None,
        access_key_file=str(key),
        secret_key_file=str(secret),
    )


async def results_on(settings: S3Settings, home: Path) -> dict[str, Any]:
    async with opened_objects(settings, home / "objects", {}) as objects:
        found = results_of(objects, "local", NAME)
        return {result.run_id: canonical(result) async for result in found}
