"""A pull from S3 killed at any moment goes on where it was, and takes no torn file for whole."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fde_ray.store.objects.s3 import S3Store
from fde_ray.store.pulls.keeping import is_whole, receipts_of
from tests.store.objects.fake_s3 import BUCKET, FakeS3, fake_s3
from tests.store.objects.s3_servers import ENVIRON, make_settings, until
from tests.store.sweeps import SWEEP, put_sweep

RUNS, PARALLEL = 6, 4
COMMAND = (sys.executable, "-c", "from fde_ray.cli.main import main; main()")


@pytest.fixture
def s3() -> Iterator[FakeS3]:
    with fake_s3() as server:
        store = S3Store(make_settings(server.endpoint, prefix="lab"), ENVIRON)
        asyncio.run(put_sweep(store, RUNS))
        store.close()
        server.calls.clear()
        yield server


def started(s3: FakeS3, out: Path) -> subprocess.Popen[bytes]:
    keys = {"AWS_ACCESS_KEY_ID": ENVIRON["S3_KEY"], "AWS_SECRET_ACCESS_KEY": ENVIRON["S3_SECRET"]}
    place = ("--from", f"s3://{BUCKET}/lab", "--endpoint-url", s3.endpoint)
    what = ("--only", "all", "--parallel", str(PARALLEL))
    return subprocess.Popen(
        [*COMMAND, "results", "pull", SWEEP, *place, "--to", str(out), *what],
        env={**os.environ, **keys, "FDE_RAY_HOME": str(out / "home")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.slow)])
async def test_killed_pull_goes_on_and_fetches_nothing_twice(
    s3: FakeS3, tmp_path: Path, kills: int
) -> None:
    for kill in range(kills):
        seen = len(s3.calls) + 40 + 10 * kill
        with started(s3, tmp_path) as pull:
            await until(lambda: len(s3.calls) >= seen or pull.poll() is not None)  # noqa: B023
            pull.kill()
    with started(s3, tmp_path) as pull:
        _, err = await asyncio.to_thread(pull.communicate, timeout=120)
    assert pull.returncode == 0, err.decode()
    folder = tmp_path / SWEEP
    receipts = receipts_of(folder)
    assert len(receipts) == _files(folder)
    assert all(is_whole(folder, receipt) for receipt in receipts)
    # What was on its way when the pull was killed is all that may come again.
    reads = Counter(call.split("?")[0] for call in s3.calls if call.startswith("GET /bench/lab/"))
    objects = {call: n for call, n in reads.items() if "/runs/" in call and "/end.json" not in call}
    assert sum(n - 1 for n in objects.values()) <= kills * (2 * PARALLEL)


def _files(folder: Path) -> int:
    books = {".pull", "tables", "summary.json", "runs.csv", "report.html"}
    found = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    return sum(path.parts[0] not in books for path in found)
