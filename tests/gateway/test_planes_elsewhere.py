"""A whole run whose run-plane, ingest and grade-plane are processes of their own."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
import yaml

from fde_ray.cli.main import exit_code
from fde_ray.model.documents import parse_document
from fde_ray.model.specs import SweepSpec
from fde_ray.presets import preset_text
from tests.gateway.zygote import Zygote

KINDS = ("run-plane", "ingest", "grade-plane")


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except OSError:
                time.sleep(0.05)
            else:
                return
    raise AssertionError(f"{path} is not served")


@pytest.mark.sandbox
def test_a_sweep_runs_on_planes_of_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FDE_RAY_PROFILE", raising=False)
    sockets = {kind: tmp_path / f"{kind[:3]}.sock" for kind in KINDS}
    run, ingest, grade = (f"unix:{sockets[kind]}" for kind in KINDS)
    profile, spec = tmp_path / "p.yaml", tmp_path / "s.yaml"
    planes = {"run": run, "ingest": ingest, "grade": grade}
    profile.write_text(yaml.safe_dump({"home": str(tmp_path / "home"), "planes": planes}))
    whole = parse_document(preset_text("demo"), SweepSpec)
    reference = [one for one in whole.systems if one.name == "reference"]
    small = whole.evolve(cases=("017",), systems=tuple(reference), repeats=1)
    small = small.evolve(conditions=small.conditions[-1:])
    spec.write_text(yaml.safe_dump(small.jsonable()))
    zygote = Zygote(tmp_path / "log")
    try:
        for kind, path in sockets.items():
            at = ("--listen", f"unix:{path}", "--admin", f"unix:{path}.admin")
            zygote.started("serve", kind, "--profile", str(profile), *at)
        for path in sockets.values():
            wait_for(path)
        assert exit_code(["sweep", "submit", str(spec), "--profile", str(profile)]) == 0
    finally:
        zygote.close()
    told = capsys.readouterr()
    assert exit_code(["results", "ls", small.name, "--profile", str(profile), "--json"]) == 0
    assert '"score": 1.0' in capsys.readouterr().out, told.err
    assert "internal_error" not in (tmp_path / "log").read_text()
