"""Whether a route's output comes from the agent's files: the host side of `checker` (rule 22)."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fde_ray.cases.records import SubmissionSchema
from fde_ray.model.base import Record
from fde_ray.model.boxes import BOX_ROOT
from fde_ray.model.errors import EvaluatorFault, SandboxError
from fde_ray.model.failures import FailureKind
from fde_ray.model.grading import ExtractionReport, Provenance
from fde_ray.sandbox.records import Completed, StoredFolder
from fde_ray.shim.boxes import ENV_PYTHON

from .isolation import Isolation, python_once, tail

TOOL, JOB, WORKSPACE, OUTPUT = (
    f"{BOX_ROOT}/{name}" for name in ("tool", "job", "workspace", "output")
)
JOB_FILE = "job.json"
MAX_OUTPUT_BYTES = 1 << 18
_START = (
    f"import sys; sys.path.insert(0, {TOOL!r}); "
    "from checker.program import main; sys.exit(main(sys.argv[1:]))"
)


class CheckLimits(Record):
    timeout_s: float = 120.0
    memory_bytes: int = 2 << 30


async def check(
    sandbox: Isolation,
    workspace: Path,
    output: Path,
    schema: SubmissionSchema,
    report: ExtractionReport,
    limits: CheckLimits | None = None,
    *,
    workspace_key: str | None = None,
) -> Provenance:
    """Return the checker's verdict on `output`.

    `unchecked` when the checker could not finish: foreign files must not decide a grade that way.
    EvaluatorFault(GRADER_SANDBOX) when the sandbox did not start. workspace_key: of the workspace's
    archive in the object store; None = it is only here.
    """
    limits = limits or CheckLimits()
    with tempfile.TemporaryDirectory(prefix="fde-check-") as folder:
        job = _written_job(Path(folder), job_document(schema, report))
        once = python_once(
            *("-c", _START, f"{JOB}/{JOB_FILE}", WORKSPACE, OUTPUT),
            folders={
                f"{TOOL}/checker": Path(__file__).with_name("checker"),
                JOB: job,
                WORKSPACE: workspace,
                OUTPUT: output,
            },
            timeout_s=limits.timeout_s,
            memory_bytes=limits.memory_bytes,
            stored={} if workspace_key is None else {WORKSPACE: StoredFolder(workspace_key)},
            # The agent's environment has a reader for Parquet; evaluators never see it.
            python=ENV_PYTHON,
        )
        try:
            completed = await sandbox.run_once(once)
        except SandboxError as error:
            raise EvaluatorFault(FailureKind.GRADER_SANDBOX, error.detail) from error
    return verdict_of(completed)


def _written_job(folder: Path, document: dict[str, Any]) -> Path:
    folder.chmod(0o755)
    (folder / JOB_FILE).write_text(json.dumps(document), encoding="utf-8")
    return folder


def job_document(schema: SubmissionSchema, report: ExtractionReport) -> dict[str, Any]:
    """Return what the checker is told, as JSON types."""
    told = report.jsonable()
    return {
        "files": schema.jsonable()["files"],
        "sources": {
            name: [[ref["path"], ref["sha256"]] for ref in refs]
            for name, refs in told["sources"].items()
        },
        "unit_factors": told["unit_factors"],
        "rows": told["rows"],
    }


def verdict_of(completed: Completed) -> Provenance:
    """Return the verdict that the checker printed."""
    if completed.reason != "exit":
        return _unchecked(f"the checker was stopped: {completed.reason}")
    if completed.exit_code != 0:
        return _unchecked(f"the checker ended with {completed.exit_code}: {_last_line(completed)}")
    if len(completed.stdout) > MAX_OUTPUT_BYTES or completed.stdout.count(b"\n") != 1:
        return _unchecked("the checker printed no single line")
    try:
        return Provenance.model_validate_json(completed.stdout, strict=True)
    except ValidationError:
        return _unchecked("the checker printed no verdict")


def _last_line(completed: Completed) -> str:
    return (tail(completed.stderr).splitlines() or [""])[-1][:200]


def _unchecked(reason: str) -> Provenance:
    return Provenance(verdict="unchecked", findings=(reason,))
