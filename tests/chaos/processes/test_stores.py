"""The stores behind a real driver fail and come back; the sweep ends like a calm one."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from fde_ray.model.result import RunResult
from tests.e2e.fake_models import FakeModels, fake_models
from tests.postgresql import running_postgresql, started
from tests.store.objects.fake_s3 import BUCKET, FakeS3, Fault, fake_s3
from tests.store.objects.s3_servers import ENVIRON

from .rounds import SCRIPTS, Round

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
]
AWAY_S = 5.0


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("calm")
    with fake_models(SCRIPTS) as models:
        return Round(home, models).ends()


def test_a_database_that_restarts_costs_no_attempt(tmp_path: Path, calm: dict[str, Any]) -> None:
    with fake_models(SCRIPTS) as models, running_postgresql() as server:
        round_ = Round(tmp_path, models, database=server.url())
        try:
            round_.reaches("one", 2)
            server.stop()
            time.sleep(AWAY_S)
            with started(server.folder):
                assert round_.ends() == calm
                assert round_.rows("SELECT count(*) FROM attempts WHERE role = 'solve'") == [(2,)]
        finally:
            round_.stop()


class RoundOnS3(Round):
    def __init__(self, home: Path, models: FakeModels, server: FakeS3) -> None:
        self._server = server
        files = {name: home / name for name in ENVIRON}
        for name, file in files.items():
            file.write_text(ENVIRON[name])
        objects = {
            "kind": "s3",
            "bucket": BUCKET,
            "endpoint_url": server.endpoint,
            "access_key_file": str(files["S3_KEY"]),
            "secret_key_file": str(files["S3_SECRET"]),
            "read_timeout": "2s",
        }
        super().__init__(home, models, objects=objects)

    def results(self) -> dict[str, RunResult]:
        stored = self._server.objects
        found = [stored[key].data for key in stored if key.endswith("/result.json")]
        return {r.run_id: r for r in map(RunResult.model_validate_json, found)}


@pytest.mark.parametrize(
    "trouble",
    [
        {"status": 503},
        {"status": 503, "after": True},
        {"delay_s": 3.0, "cut": True},
        {"delay_s": 3.0, "cut": True, "after": True},
    ],
    ids=["busy", "busy_afterwards", "silent", "silent_afterwards"],
)
def test_an_object_store_that_fails_for_a_while_costs_no_attempt(
    tmp_path: Path, calm: dict[str, Any], trouble: dict[str, Any]
) -> None:
    with fake_models(SCRIPTS) as models, fake_s3() as server:
        round_ = RoundOnS3(tmp_path, models, server)
        try:
            round_.reaches("one", 3)
            until = time.monotonic() + AWAY_S
            faults = (Fault(m, until=until, **trouble) for m in ("PUT", "GET", "HEAD", "POST"))
            server.faults.extend(faults)
            assert round_.ends() == calm
            assert round_.rows("SELECT count(*) FROM attempts WHERE role = 'solve'") == [(2,)]
            assert server.uploads == {}
        finally:
            round_.stop()
