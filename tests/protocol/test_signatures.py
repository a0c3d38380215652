from __future__ import annotations

import pytest

from fde_ray.model.failures import FailureKind
from fde_ray.model.grading import Evaluation
from fde_ray.protocol.signatures import zero_signature
from tests.protocol.builders import make_evaluation

CRASH = FailureKind.EVALUATOR_CRASH


def invalid(*codes: str) -> Evaluation:
    return make_evaluation(0.0, valid=False, stage="constraint", codes=codes)


def structural(*codes: str) -> Evaluation:
    return make_evaluation(0.0, valid=False, exit_code=3, stage="structure", codes=codes)


@pytest.mark.parametrize(
    ("evaluation", "failure", "expected"),
    [
        (invalid("capacity"), None, "constraint"),
        (invalid(), None, "constraint"),
        (invalid("fatal.horizon", "capacity"), CRASH, "constraint"),
        (invalid("fatal.horizon"), None, "fatal"),
        (structural("fatal.horizon", "missing_file"), None, "fatal"),
        (structural("missing_file"), None, "schema"),
        (structural(), None, "schema"),
        (structural("missing_file"), CRASH, "schema"),
        (None, CRASH, "execution"),
        (None, FailureKind.EVALUATOR_TIMEOUT, "execution"),
        (None, FailureKind.EVALUATOR_OUTPUT, "execution"),
        (None, FailureKind.NO_ARTIFACT, "no_artifact"),
        (make_evaluation(0.0), None, None),
        (make_evaluation(0.4), None, None),
        (make_evaluation(0.0, codes=("soft",)), None, None),
        (make_evaluation(0.4, codes=("soft",)), CRASH, None),
        (make_evaluation(0.0, valid=False, stage="structure", codes=("x",)), None, "schema"),
        (make_evaluation(0.0, valid=False, exit_code=3, codes=("x",)), None, "schema"),
        (None, None, None),
        (None, FailureKind.PROVIDER_UNAVAILABLE, None),
    ],
)
def test_rule_31_a_zero_has_one_signature_by_precedence(
    evaluation: Evaluation | None, failure: FailureKind | None, expected: str | None
) -> None:
    assert zero_signature(evaluation, failure) == expected


def test_rule_16_no_artifact_stands_apart() -> None:
    assert zero_signature(invalid("capacity"), FailureKind.NO_ARTIFACT) == "no_artifact"
