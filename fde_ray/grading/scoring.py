"""The evaluator of a case, run on one submission (cases: evaluator contract; protocol rule 23).

Of an executable case it is run on what the submitted program answers (`programs`).
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pydantic import Field, ValidationError

from fde_ray.cases.records import Case, Program
from fde_ray.model.base import Record
from fde_ray.model.boxes import BOX_ROOT
from fde_ray.model.errors import EvaluatorFault, SandboxError
from fde_ray.model.failures import FailureKind
from fde_ray.model.grading import Evaluation
from fde_ray.sandbox.records import Completed, StoredFolder

from .isolation import Isolation, Owned, python_once, tail
from .programs import answered

SEALED, DATA, SUBMISSION = (f"{BOX_ROOT}/{name}" for name in ("sealed", "data", "submission"))
SCORED, STRUCTURAL = 0, 3
MAX_LINE_BYTES = 1 << 20
MAX_VIOLATIONS = 1_000
REMEMBERED = 1_000


class ScoringCase(Record):
    """What scoring needs of a case, and what the evaluator must say about itself."""

    case_id: str
    version: str
    scoring_hash: str
    sealed_dir: Path
    data_dir: Path
    timeout_s: float = Field(gt=0)
    memory_bytes: int = Field(gt=0)
    program: Program | None = None
    """Of an executable case: how what is submitted is run before the evaluator."""
    sealed_key: str | None = None
    """Of the sealed archive in the object store; None = it is only here."""
    visible_key: str | None = None
    """Of the visible one, which holds the data."""
    submission_bytes: int = Field(default=1 << 30, gt=0)
    """The most that a submitted program may measure."""

    @property
    def stored(self) -> dict[str, StoredFolder]:
        """Return what the object store holds of the folders that an evaluator sees."""
        found = {}
        if self.sealed_key is not None:
            found[SEALED] = StoredFolder(self.sealed_key)
        if self.visible_key is not None:
            found[DATA] = StoredFolder(self.visible_key, "data")
        return found


def scoring_case(
    case: Case,
    *,
    sealed_dir: Path,
    data_dir: Path,
    sealed_key: str | None = None,
    visible_key: str | None = None,
) -> ScoringCase:
    """Return the scoring facts of a case whose sealed and data folders were staged here."""
    return ScoringCase(
        case_id=case.case_id,
        version=case.meta.version,
        scoring_hash=case.scoring_hash,
        sealed_dir=sealed_dir,
        data_dir=data_dir,
        timeout_s=case.limits.eval_s,
        memory_bytes=case.limits.eval_mib << 20,
        program=case.meta.program,
        sealed_key=sealed_key,
        visible_key=visible_key,
        submission_bytes=case.limits.submission_mib << 20,
    )


class Scorer:
    """Runs evaluators in `sandbox`, and remembers the latest evaluations.

    Equal output gets an equal evaluation (admission rule A19 holds evaluators to it), so routes
    that agree to the byte cost one call.
    """

    def __init__(self, sandbox: Isolation) -> None:
        self._sandbox = sandbox
        self._known: dict[tuple[str, str], Evaluation] = {}

    async def evaluate(
        self,
        case: ScoringCase,
        submission_dir: Path,
        output_sha256: str | None = None,
        *,
        owner: str | None = None,
    ) -> Evaluation:
        """Return what the evaluator says; EvaluatorFault when it says nothing usable.

        output_sha256: hash of all that the evaluator may read there; None = ask it in any case.
        owner: the grade that it is asked for.
        """
        key = None if output_sha256 is None else (case.scoring_hash, output_sha256)
        if key is not None and key in self._known:
            return self._known[key]
        evaluation = await self._asked(case, submission_dir, owner)
        if key is not None:
            if len(self._known) >= REMEMBERED:
                self._known.pop(next(iter(self._known)))
            self._known[key] = evaluation
        return evaluation

    async def _asked(
        self, case: ScoringCase, submission_dir: Path, owner: str | None
    ) -> Evaluation:
        sandbox = Owned(self._sandbox, owner)
        try:
            if case.program is None:
                return await _judged(sandbox, case, submission_dir)
            with tempfile.TemporaryDirectory(prefix="fde-answers-") as scratch:
                answers = await answered(
                    sandbox,
                    case.program,
                    submission_dir,
                    case.sealed_dir,
                    Path(scratch),
                    max_bytes=case.submission_bytes,
                )
                return await _judged(sandbox, case, answers)
        except SandboxError as error:
            raise EvaluatorFault(FailureKind.GRADER_SANDBOX, error.detail) from error


async def _judged(sandbox: Isolation, case: ScoringCase, folder: Path) -> Evaluation:
    once = python_once(
        f"{SEALED}/evaluator.py",
        *("--data-dir", DATA, "--submission-dir", SUBMISSION, "--sealed-dir", SEALED),
        folders={SEALED: case.sealed_dir, DATA: case.data_dir, SUBMISSION: folder},
        timeout_s=case.timeout_s,
        memory_bytes=case.memory_bytes,
        stored=case.stored,
    )
    return evaluation_of(await sandbox.run_once(once), case)


def evaluation_of(completed: Completed, case: ScoringCase) -> Evaluation:
    """Return the evaluation that an evaluator's exit and output amount to."""
    if completed.reason == "timeout":
        raise EvaluatorFault(FailureKind.EVALUATOR_TIMEOUT, f"after {case.timeout_s:g} s")
    if completed.reason == "memory":
        raise EvaluatorFault(FailureKind.EVALUATOR_CRASH, "out of memory")
    if completed.reason == "output":
        _unusable("too much output")
    if completed.exit_code not in (SCORED, STRUCTURAL):
        detail = f"exit {completed.exit_code}: {tail(completed.stderr)}"
        raise EvaluatorFault(FailureKind.EVALUATOR_CRASH, detail)
    evaluation = _parsed(completed.stdout, completed.exit_code)
    _check_identity(evaluation, case)
    _check_sense(evaluation)
    return evaluation


def evaluator_line(evaluation: Evaluation) -> str:
    """Return the evaluator's JSON line again, as the extractor's `evaluate` command shows it."""
    document = evaluation.jsonable()
    del document["exit_code"]
    return json.dumps(document, sort_keys=True, allow_nan=False)


def _unusable(reason: str) -> NoReturn:
    raise EvaluatorFault(FailureKind.EVALUATOR_OUTPUT, reason)


def _parsed(stdout: bytes, exit_code: int) -> Evaluation:
    if len(stdout) > MAX_LINE_BYTES:
        _unusable("too much output")
    line = stdout.removesuffix(b"\n")
    if not line or b"\n" in line or b"\r" in line:
        _unusable(f"{len(stdout.splitlines())} lines instead of one")
    try:
        document = json.loads(
            line.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as error:
        _unusable(f"no JSON: {error}")
    if not isinstance(document, dict) or "exit_code" in document:
        _unusable("not the object of the contract")
    missing = sorted(set(Evaluation.model_fields) - {"exit_code"} - set(document))
    if missing:
        _unusable(f"{missing[0]!r} is missing")
    try:
        text = json.dumps({**document, "exit_code": exit_code}, allow_nan=False)
        return Evaluation.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        _unusable(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}")
    except (ValueError, RecursionError) as error:
        _unusable(f"no JSON: {error}")


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a key stands twice")
    return document


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is out of range")
    return value


def _check_identity(evaluation: Evaluation, case: ScoringCase) -> None:
    for name, said, expected in (
        ("case", evaluation.case, case.case_id),
        ("version", evaluation.version, case.version),
        ("scoring_hash", evaluation.scoring_hash, case.scoring_hash),
    ):
        if said != expected:
            _unusable(f"{name} is {said[:80]!r}, not {expected!r}")


def _check_sense(evaluation: Evaluation) -> None:
    e = evaluation
    quality_ok = e.quality is None or e.quality >= 0
    contradictions = {
        "the stage does not fit the verdict": e.valid != (e.stage == "quality"),
        "valid with violations": e.valid and bool(e.violations),
        "not valid without a violation": not e.valid and not e.violations,
        "not valid, but scored": not e.valid and e.score != 0,
        "a score that is not the quality": e.valid and (e.quality is None or e.score != e.quality),
        "valid without a raw objective": e.valid and e.raw is None,
        "a negative score or quality": e.score < 0 or not quality_ok,
        "exit 3 for another stage": e.exit_code == STRUCTURAL and e.stage != "structure",
        "too many violations": len(e.violations) > MAX_VIOLATIONS,
    }
    for reason, found in contradictions.items():
        if found:
            _unusable(reason)
