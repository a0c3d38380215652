"""A sweep on Ray with its rows in PostgreSQL gives what an inline one on files gives."""

from __future__ import annotations

import json

import pytest

from tests.e2e.driving import canonical_results, said
from tests.postgresql import running_postgresql

pytestmark = [pytest.mark.sandbox, pytest.mark.ray, pytest.mark.slow]

SWEEP = ("sweep", "submit", "demo", "--case", "017", "--json")
NAME = "demo-017"


def test_rows_in_postgresql_give_the_results_of_an_inline_sweep_on_files(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    inline, home = tmp_path_factory.mktemp("inline"), tmp_path_factory.mktemp("ray")
    said(inline, *SWEEP)
    with running_postgresql() as server:
        profile = home / "profile.yaml"
        document = {"schema": "fde_ray.profile/1", "engine": "ray", "store": server.url()}
        profile.write_text(json.dumps(document))
        said(home, *SWEEP, "--profile", str(profile))
        assert not (home / "runs.sqlite").exists()
        assert canonical_results(home, NAME) == canonical_results(inline, NAME)
