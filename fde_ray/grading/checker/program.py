"""The way in: read a job, print one JSON line. Every surprise becomes `unchecked` with a reason."""

from __future__ import annotations

import csv
import json
import sys
from typing import Any

from .deliverable import checked
from .tables import Verdict

MAX_FINDINGS = 40
MAX_FINDING_CHARS = 240


def main(argv: list[str]) -> int:
    """Run the job: `argv` holds the paths of the job file, the workspace and the output."""
    job_path, workspace, output = argv
    csv.field_size_limit(1 << 20)
    with open(job_path, encoding="utf-8") as stream:
        job = json.load(stream)
    sys.stdout.write(line_of(verdict_on(job, workspace, output)) + "\n")
    return 0


def verdict_on(job: dict[str, Any], workspace: str, output: str) -> Verdict:
    """Return the verdict; never raises for what workspace or output hold."""
    try:
        return checked(job, workspace, output)
    except MemoryError:
        return Verdict("unchecked", ["the checker ran out of memory"])
    except RecursionError:
        return Verdict("unchecked", ["nested too deeply"])
    except Exception as error:  # noqa: BLE001 - hostile files must not decide a grade by a crash
        return Verdict("unchecked", [f"the checker failed ({type(error).__name__})"])


def line_of(verdict: Verdict) -> str:
    findings = [_printable(finding) for finding in verdict.findings]
    if len(findings) > MAX_FINDINGS:
        findings = [*findings[: MAX_FINDINGS - 1], f"and {len(findings) - MAX_FINDINGS + 1} more"]
    return json.dumps({"verdict": verdict.verdict, "findings": findings})


def _printable(text: str) -> str:
    clean = "".join(c if c.isprintable() else "?" for c in text)
    return clean if len(clean) <= MAX_FINDING_CHARS else clean[: MAX_FINDING_CHARS - 1] + "…"
