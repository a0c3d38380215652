"""Sweeps with fake models through the real command line; what the hostile tests share."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fde_ray.cases.authoring.writers import write_manifest
from fde_ray.engine.runtime import shipped_cases
from fde_ray.model.result import RunResult
from fde_ray.protocol.packs import builtin_pack
from tests.e2e.driving import COMMAND, environment, results

CASE = shipped_cases() / "017_cold_rolling_sequencing"
BEST = (CASE / "sealed/best_solution/schedule.csv").read_text()
MARKER = builtin_pack().render("heading_marker").strip()
OFFLINE_PANEL = [f"offline/extractor-{n}" for n in range(1, 6)]
LIMITS = {
    "time": "60s",
    "pushes": 1,
    "pause_cap": "60s",
    "memory": "192MiB",
    "disk": "64MiB",
    "processes": 48,
    "archive": "64MiB",
    "cpu": 1.0,
}
LONGEST_S = 400.0


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


def fde_ray(home: Path, *arguments: str, **env: str) -> Done:
    done = subprocess.run(
        [*COMMAND, *arguments],
        env={**environment(home), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LONGEST_S,
        check=False,
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def minimal(*names: str, **settings: Any) -> list[dict[str, Any]]:
    """Return systems of the minimal scaffold, each with the fake model of its name."""
    more = {"settings": settings} if settings else {}
    return [{"name": n, "scaffold": "minimal", "model": f"fake/{n}", **more} for n in names]


def scripted(*names: str) -> list[dict[str, Any]]:
    return [{"name": n, "scaffold": "scripted", "model": f"offline/{n}"} for n in names]


def write_profile(home: Path, base_url: str | None, **more: Any) -> Path:
    endpoints = [{"match": "fake/*", "base_url": base_url, "timeout": "20s"}] if base_url else []
    profile = {
        "schema": "fde_ray.profile/1",
        "endpoints": endpoints,
        "unpriced_models": "allow",
        "sandbox": {"runtime": "bubblewrap"},
        "concurrency": {"runs": 6, "gradings": 2},
        "heartbeat_every": "1s",
        "provider_retries": 1,
        "attempts": 2,
        **more,
    }
    path = home / "profile.yaml"
    path.write_text(yaml.safe_dump(profile))
    return path


def write_spec(home: Path, name: str, systems: Sequence[Mapping[str, Any]], **more: Any) -> Path:
    spec = {
        "schema": "fde_ray.sweep/1",
        "name": name,
        "cases": ["017"],
        "conditions": ["hidden"],
        "repeats": 1,
        "customer": {"model": "offline/customer"},
        **more,
        "systems": list(systems),
        "limits": LIMITS | more.get("limits", {}),
        "panel": {"models": OFFLINE_PANEL, "time": "60s", "steps": 8} | more.get("panel", {}),
    }
    path = home / f"{name}.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def by_system(home: Path, sweep: str) -> dict[str, RunResult]:
    return {result.system: result for result in results(home, sweep).values()}


def collected(home: Path, run_id: str) -> bytes:
    """Return the unpacked tar stream of the run's last snapshot."""
    (manifest,) = (home / "objects/local/runs").glob(
        f"*/{run_id}/attempts/1/workspace/final/manifest.json"
    )
    parts = sorted((manifest.parent / "parts").iterdir(), key=lambda p: p.name)
    return gzip.decompress(b"".join(part.read_bytes() for part in parts))


def collected_files(home: Path, run_id: str) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(collected(home, run_id))) as archive:
        found = {m.name: archive.extractfile(m) for m in archive if m.isfile()}
        return {name: file.read() for name, file in found.items() if file is not None}


def leftovers(home: Path) -> list[str]:
    """Return what still runs for this state folder."""
    needle, mine = os.fsencode(home), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if needle in (entry / "cmdline").read_bytes():
                    mine.append(entry.name)
            except OSError:
                continue
    return mine


def copied_case(folder: Path, number: str = "017") -> Path:
    """Return a copy of case 017 below `folder`, under another number."""
    root = folder / f"{number}_cold_rolling_sequencing"
    shutil.copytree(CASE, root, ignore=shutil.ignore_patterns("__pycache__"))
    meta = root / "case.toml"
    meta.write_text(meta.read_text().replace("id = 17\n", f"id = {int(number)}\n"))
    write_manifest(root)
    return root
