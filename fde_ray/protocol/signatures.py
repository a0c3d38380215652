"""Why a run scored zero: one signature each (protocol rules 16 and 31; paper A.7)."""

from __future__ import annotations

from typing import Literal

from fde_ray.model.failures import FailureKind
from fde_ray.model.grading import Evaluation

Signature = Literal["constraint", "fatal", "schema", "execution", "no_artifact"]
PRECEDENCE: tuple[Signature, ...] = ("constraint", "fatal", "schema", "execution")
FATAL_PREFIX = "fatal"
"""A violation code of this prefix is a case-defined fatal check."""
EXECUTION_FAILURES = frozenset(
    {
        FailureKind.EVALUATOR_CRASH,
        FailureKind.EVALUATOR_TIMEOUT,
        FailureKind.EVALUATOR_OUTPUT,
    }
)


def zero_signature(
    evaluation: Evaluation | None, failure: FailureKind | None = None
) -> Signature | None:
    """Return the signature of a zero; None when the score is not zero or nothing explains it."""
    if failure is FailureKind.NO_ARTIFACT:
        return "no_artifact"
    if evaluation is not None and evaluation.score != 0:
        return None
    recorded = _recorded(evaluation) | ({"execution"} if failure in EXECUTION_FAILURES else set())
    return next((signature for signature in PRECEDENCE if signature in recorded), None)


def _recorded(evaluation: Evaluation | None) -> set[str]:
    if evaluation is None or evaluation.valid:
        return set()
    found = {"fatal" for violation in evaluation.violations if _is_fatal(violation.code)}
    if evaluation.exit_code == 3 or evaluation.stage == "structure":
        return found | {"schema"}
    others = [v for v in evaluation.violations if not _is_fatal(v.code)]
    if others or not found:
        found.add("constraint")
    return found


def _is_fatal(code: str) -> bool:
    return code.startswith(FATAL_PREFIX)
