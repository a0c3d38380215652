"""Runs an evaluator on a set of files as the scorer does: own process, nothing inherited."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_OUTPUT_BYTES = 1 << 20


@dataclass(frozen=True)
class Evaluation:
    """What one evaluator run left: exit status, JSON line (None if there is none), raw bytes."""

    status: int | None
    result: Mapping[str, Any] | None
    stdout: bytes
    stderr: str

    @property
    def valid(self) -> bool:
        return bool(self.result and self.result.get("valid"))

    @property
    def score(self) -> float:
        return float(self.result["score"]) if self.result and self.status == 0 else 0.0

    @property
    def codes(self) -> tuple[str, ...]:
        listed = self.result["violations"] if self.result else []
        return tuple(entry["code"] for entry in listed)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below an existing folder; names that leave it are a ValueError."""
    root = folder.resolve()
    for name, content in files.items():
        target = (root / name).resolve()
        if root not in target.parents:
            raise ValueError(f"{name!r} leaves the folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def evaluate_folder(
    case_root: Path,
    submission: Path,
    *,
    timeout_s: float = 60.0,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Evaluation:
    """Run a case's evaluator on a folder; status None means that the time ran out."""
    command = [
        sys.executable,
        "-I",
        "-S",
        str(case_root / "sealed" / "evaluator.py"),
        "--data-dir",
        str(case_root / "data"),
        "--submission-dir",
        str(submission),
    ]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=timeout_s,
            cwd=cwd or submission,
            stdin=subprocess.DEVNULL,
            env=dict(environment or {"LC_ALL": "C.UTF-8"}),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Evaluation(None, None, b"", "timed out")
    return Evaluation(
        done.returncode,
        _json_line(done.stdout),
        done.stdout[:MAX_OUTPUT_BYTES],
        done.stderr.decode("utf-8", "replace")[:2000],
    )


def _json_line(output: bytes) -> Mapping[str, Any] | None:
    if len(output) > MAX_OUTPUT_BYTES:
        return None
    try:
        record = json.loads(output)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def evaluate_files(
    case_root: Path, files: Mapping[str, bytes], *, timeout_s: float = 60.0
) -> Evaluation:
    """Run a case's evaluator on files that are written to a throw-away folder first."""
    with tempfile.TemporaryDirectory(prefix="fde-ray-probe-") as scratch:
        folder = Path(scratch)
        write_files(folder, files)
        return evaluate_folder(case_root, folder, timeout_s=timeout_s)
