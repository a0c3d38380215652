"""Evaluators that crash, hang, talk or lie: the grade is missing, and nothing is scored zero."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fde_ray.cases.authoring.writers import write_manifest
from fde_ray.model.failures import FAILURES, FailureKind
from tests.e2e.hostile import (
    Done,
    by_system,
    copied_case,
    fde_ray,
    scripted,
    write_profile,
    write_spec,
)

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
]

LAST = 'if __name__ == "__main__":\n'
BUSY = {"runs": 5, "gradings": 5}
FAULTS: dict[str, tuple[FailureKind, Callable[[str], str]]] = {
    "901": (
        FailureKind.EVALUATOR_CRASH,
        lambda s: s.replace(LAST, LAST + "    raise RuntimeError('\\x1b[31mbroken')\n"),
    ),
    "902": (
        FailureKind.EVALUATOR_TIMEOUT,
        lambda s: s.replace(LAST, LAST + "    while True:\n        pass\n"),
    ),
    "903": (
        FailureKind.EVALUATOR_OUTPUT,
        lambda s: s.replace(LAST, LAST + "    print('loading the truth')\n"),
    ),
    "904": (
        FailureKind.EVALUATOR_OUTPUT,
        lambda s: s.replace(
            LAST, LAST + '    print(\'{"score": NaN, "valid": true}\')\n    sys.exit(0)\n'
        ),
    ),
}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    home = tmp_path_factory.mktemp("evaluators")
    cases = home / "cases"
    for number, (_, change) in FAULTS.items():
        root = copied_case(cases, number)
        evaluator = root / "sealed/evaluator.py"
        changed = change(evaluator.read_text())
        assert changed != evaluator.read_text()
        evaluator.write_text(changed)
        meta = root / "case.toml"
        meta.write_text(meta.read_text().replace("eval_s = 10", "eval_s = 1"))
        write_manifest(root)
    copied_case(cases)
    profile = write_profile(home, None, cases=str(cases), attempts=1, concurrency=BUSY)
    spec = write_spec(home, "faults", scripted("reference"), cases=["017", *FAULTS])
    return home, fde_ray(home, "sweep", "submit", str(spec), "--profile", str(profile))


@pytest.fixture(scope="module")
def rows(sweep: tuple[Path, Done]) -> dict[str, dict[str, Any]]:
    home, _ = sweep
    profile = str(home / "profile.yaml")
    done = fde_ray(home, "results", "ls", "faults", "--json", "--profile", profile)
    assert done.code == 0, done.err
    return {row["case_id"]: row for row in json.loads(done.out)}


def test_the_other_case_is_scored_and_the_command_says_that_not_all_was_done(
    sweep: tuple[Path, Done],
) -> None:
    home, done = sweep
    assert done.code == 1, done.err
    results = by_system(home, "faults")
    assert results["reference"].case_id == "017"
    assert results["reference"].score == 1.0
    assert len(list((home / "objects").rglob("result.json"))) == 1


@pytest.mark.parametrize("number", list(FAULTS))
def test_rule_23_a_fault_of_the_evaluator_leaves_the_grade_missing(
    sweep: tuple[Path, Done], rows: dict[str, dict[str, Any]], number: str
) -> None:
    home, _ = sweep
    row = rows[number]
    assert (row["phase"], row["grade"], row["score"]) == ("quarantined", "grade_missing", None)
    profile = str(home / "profile.yaml")
    told = fde_ray(home, "run", "explain", row["run_id"], "--profile", profile)
    assert FAILURES[FAULTS[number][0]].text in told.out, told.out
    assert "\x1b" not in told.out
