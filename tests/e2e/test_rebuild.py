"""The run store is lost while real sandboxes work; rebuilt, the sweep ends as it would have."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from fde_ray.model.documents import parse_document
from fde_ray.model.specs import SweepSpec
from fde_ray.presets import preset_text
from tests.e2e.driving import LIMIT_S, canonical_results, said, started

pytestmark = pytest.mark.sandbox

NAME = "lost"
SYSTEMS = 3


def make_spec(folder: Path) -> Path:
    demo = parse_document(preset_text("demo"), SweepSpec)
    systems = [system.jsonable() for system in demo.systems[:SYSTEMS]]
    spec = demo.evolve(name=NAME, cases=["017"], systems=systems, conditions=["interact_req"])
    path = folder / "spec.yaml"
    path.write_text(json.dumps(spec.jsonable()))  # JSON is YAML
    return path


def objects_of(home: Path, name: str) -> list[Path]:
    return list((home / "objects").rglob(name))


def test_a_store_lost_under_live_sandboxes_comes_back_and_nothing_ends_twice(
    tmp_path: Path,
) -> None:
    whole, lost = tmp_path / "whole", tmp_path / "lost"
    for home in (whole, lost):
        home.mkdir()
    spec = str(make_spec(tmp_path))
    said(whole, "sweep", "submit", spec, "--json")
    want = canonical_results(whole, NAME)
    assert len(want) == SYSTEMS

    driver = started(lost, "sweep", "submit", spec, "--json")
    deadline = time.monotonic() + LIMIT_S
    while not objects_of(lost, "start.json") and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.0)
    driver.send_signal(signal.SIGKILL)
    driver.communicate(timeout=60)
    for path in lost.glob("runs.sqlite*"):
        path.unlink()

    told = said(lost, "store", "rebuild", "--json")
    assert (told["runs"], told["findings"], told["strangers"]) == (SYSTEMS, [], [])
    assert told["incarnation"] == 2
    said(lost, "sweep", "resume", NAME, "--json")
    assert canonical_results(lost, NAME) == want
    assert len(objects_of(lost, "result.json")) == SYSTEMS
    assert list((lost / "sandboxes" / "sessions").glob("*")) == []
