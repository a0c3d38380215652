"""Rows in PostgreSQL, objects on S3: a sweep on Ray gives what an inline one on files does."""

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

SWEEP = ("sweep", "submit", "demo", "--case", "017", "--json")
NAME = "demo-017"


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


@pytest.mark.parametrize("name", ["moto", "versitygw"])
def test_results_are_those_of_an_inline_sweep_on_files(
    name: str, servers: Servers, expected: dict[str, Any], tmp_path: Path
) -> None:
    settings = with_key_files(make_settings(servers.endpoint(name)), tmp_path)
    with running_postgresql() as server:
        document = {
            "schema": "fde_ray.profile/1",
            "engine": "ray",
            "store": server.url(),
            "objects": settings.jsonable(),
        }
        profile = tmp_path / "profile.yaml"
        profile.write_text(json.dumps(document))
        said(tmp_path, *SWEEP, "--profile", str(profile))
    assert asyncio.run(results_on(settings, tmp_path)) == expected
    assert not (tmp_path / "runs.sqlite").exists()
    assert not [path for path in (tmp_path / "objects").rglob("*") if path.is_file()]


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
