"""Only a whole, sensible evaluator reply is an evaluation; all else is a typed fault."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fde_ray.grading.scoring import (
    DATA,
    SEALED,
    Scorer,
    ScoringCase,
    evaluation_of,
    evaluator_line,
)
from fde_ray.model.errors import EvaluatorFault
from fde_ray.model.failures import FailureKind
from fde_ray.sandbox.records import Completed, StoredFolder
from tests.grading.doubles import LocalRunOnce, ended_with

CRASH, TIMEOUT = FailureKind.EVALUATOR_CRASH, FailureKind.EVALUATOR_TIMEOUT
OUTPUT, SANDBOX = FailureKind.EVALUATOR_OUTPUT, FailureKind.GRADER_SANDBOX


def case_at(folder: Path, timeout_s: float = 5.0) -> ScoringCase:
    return ScoringCase(
        case_id="017",
        version="1.0.0",
        scoring_hash="ab",
        sealed_dir=folder / "sealed",
        data_dir=folder / "data",
        timeout_s=timeout_s,
        memory_bytes=1 << 28,
    )


CASE = case_at(Path("/nowhere"))
GOOD: dict[str, Any] = {
    "valid": True,
    "stage": "quality",
    "raw": 12.5,
    "quality": 0.75,
    "score": 0.75,
    "components": {"setup": 3, "note": "x", "none": None},
    "violations": [],
    "case": "017",
    "version": "1.0.0",
    "scoring_hash": "ab",
}
ZERO = GOOD | {
    "valid": False,
    "stage": "constraint",
    "score": 0.0,
    "violations": [{"code": "width", "count": 2, "first": "C7"}],
}
STRUCTURE = ZERO | {"stage": "structure", "raw": None, "quality": None}


def ended(document: object, exit_code: int | None = 0) -> Completed:
    return ended_with(exit_code, json.dumps(document).encode() + b"\n")


@pytest.mark.parametrize(
    ("document", "exit_code"), [(GOOD, 0), (ZERO, 0), (STRUCTURE, 0), (STRUCTURE, 3)]
)
def test_whole_reply_is_an_evaluation(document: dict[str, Any], exit_code: int) -> None:
    evaluation = evaluation_of(ended(document, exit_code), CASE)
    assert evaluation.exit_code == exit_code
    assert evaluation.score == document["score"]
    assert json.loads(evaluator_line(evaluation)) == document


def line(text: str) -> Completed:
    return ended_with(0, text.encode())


BAD: dict[str, Completed] = {
    "empty": line(""),
    "blank": line("\n"),
    "no JSON": line("all good\n"),
    "noise before": line("loading…\n" + json.dumps(GOOD) + "\n"),
    "two lines": line((json.dumps(GOOD) + "\n") * 2),
    "trailing blank line": line(json.dumps(GOOD) + "\n\n"),
    "two objects": line(json.dumps(GOOD) * 2),
    "list": ended([GOOD]),
    "NaN": line(json.dumps(GOOD | {"raw": float("nan")}) + "\n"),
    "inf": line(json.dumps(GOOD | {"components": {"x": float("inf")}}) + "\n"),
    "overflow": line(json.dumps(GOOD).replace("12.5", "1e999") + "\n"),
    "huge integer": line(json.dumps(GOOD).replace("12.5", "9" * 5000) + "\n"),
    "integer beyond floats": line(json.dumps(GOOD).replace("12.5", "9" * 400) + "\n"),
    "deep": line("[" * 100_000),
    "key twice": line('{"valid": true, ' + json.dumps(GOOD)[1:] + "\n"),
    "not UTF-8": ended_with(0, b'{"case": "\xff"}\n'),
    "too long": line(json.dumps(GOOD | {"case": "x" * (1 << 21)}) + "\n"),
    "cut by the cap": ended_with(0, b"x", reason="output"),
    "text for a number": ended(GOOD | {"score": "0.75"}),
    "number for a truth": ended(GOOD | {"valid": 1}),
    "null score": ended(GOOD | {"score": None}),
    "truth as a score": ended(GOOD | {"score": True}),
    "unknown field": ended(GOOD | {"bonus": 1}),
    "exit code in the line": ended(GOOD | {"exit_code": 0}),
    "nested component": ended(GOOD | {"components": {"x": [1]}}),
    "unknown stage": ended(GOOD | {"stage": "done"}),
    "other case": ended(GOOD | {"case": "036"}),
    "other version": ended(GOOD | {"version": "1.0.1"}),
    "other scoring hash": ended(GOOD | {"scoring_hash": "cd"}),
    "negative": ended(GOOD | {"score": -0.5, "quality": -0.5}),
    "negative quality of an invalid one": ended(ZERO | {"quality": -0.5}),
    "score beside quality": ended(GOOD | {"score": 0.9}),
    "invalid but scored": ended(ZERO | {"score": 0.5}),
    "valid at constraints": ended(GOOD | {"stage": "constraint"}),
    "invalid without reason": ended(ZERO | {"violations": []}),
    "valid with violations": ended(GOOD | {"violations": ZERO["violations"]}),
    "negative count": ended(ZERO | {"violations": [{"code": "w", "count": -1, "first": None}]}),
    "exit 3 but scored": ended(GOOD, 3),
    "exit 3 at constraints": ended(ZERO, 3),
    **{f"without {key}": ended({k: v for k, v in GOOD.items() if k != key}) for key in GOOD},
}


@pytest.mark.parametrize("completed", BAD.values(), ids=BAD.keys())
def test_unusable_output_is_a_fault(completed: Completed) -> None:
    with pytest.raises(EvaluatorFault) as caught:
        evaluation_of(completed, CASE)
    assert caught.value.kind is OUTPUT


@pytest.mark.parametrize(
    ("completed", "kind"),
    [
        pytest.param(ended(GOOD, 4), CRASH, id="our-fault"),
        pytest.param(ended(GOOD, 1), CRASH, id="exit-1"),
        pytest.param(ended(GOOD, -9), CRASH, id="signal"),
        pytest.param(ended(GOOD, None), CRASH, id="no-exit-code"),
        pytest.param(ended_with(None, reason="memory"), CRASH, id="memory"),
        pytest.param(ended_with(0, reason="timeout"), TIMEOUT, id="timeout"),
    ],
)
def test_rule_23_crash_and_hang_are_faults_not_scores(
    completed: Completed, kind: FailureKind
) -> None:
    with pytest.raises(EvaluatorFault) as caught:
        evaluation_of(completed, CASE)
    assert caught.value.kind is kind


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("sealed", "data", "submission"):
        (tmp_path / name).mkdir()
    return tmp_path


def write_evaluator(folder: Path, body: str) -> None:
    text = f"import json, os, sys, time\nGOOD = {GOOD!r}\nZERO = {ZERO!r}\n{body}\n"
    (folder / "sealed" / "evaluator.py").write_text(text)


async def test_evaluator_runs_isolated_on_the_three_folders(
    folder: Path, sandbox: LocalRunOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDE_SECRET", "s3cret")
    write_evaluator(
        folder,
        "assert sys.flags.isolated and 'FDE_SECRET' not in os.environ\n"
        "named = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "assert sorted(named) == ['--data-dir', '--sealed-dir', '--submission-dir']\n"
        "assert all(os.path.isdir(path) for path in named.values())\n"
        "print(json.dumps(GOOD))",
    )
    evaluation = await Scorer(sandbox).evaluate(case_at(folder), folder / "submission")
    assert evaluation.score == 0.75
    assert all(read_only for _, _, read_only in sandbox.seen[0].mounts)
    assert os.listdir(folder / "sealed") == ["evaluator.py"]


async def test_a_program_names_its_grade_and_what_the_store_holds_of_its_folders(
    folder: Path, sandbox: LocalRunOnce
) -> None:
    write_evaluator(folder, "print(json.dumps(GOOD))")
    plain = case_at(folder)
    stored = plain.evolve(sealed_key="t/cases/sealed/1", visible_key="t/cases/visible/2")
    await Scorer(sandbox).evaluate(plain, folder / "submission")
    await Scorer(sandbox).evaluate(stored, folder / "submission", owner="run/grade")
    assert [once.owner for once in sandbox.seen] == [None, "run/grade"]
    assert sandbox.seen[0].stored == {}
    assert sandbox.seen[1].stored == {
        SEALED: StoredFolder("t/cases/sealed/1"),
        DATA: StoredFolder("t/cases/visible/2", "data"),
    }


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        pytest.param("raise SystemExit(4)", CRASH, id="exit-4"),
        pytest.param("raise ValueError('boom')", CRASH, id="exception"),
        pytest.param("os.kill(os.getpid(), 9)", CRASH, id="killed"),
        pytest.param("time.sleep(60)", TIMEOUT, id="hang"),
        pytest.param("print('x' * (1 << 21))", OUTPUT, id="huge"),
        pytest.param("print('hello'); print(json.dumps(GOOD))", OUTPUT, id="noise"),
    ],
)
async def test_misbehaving_evaluator_is_a_typed_fault(
    folder: Path, sandbox: LocalRunOnce, body: str, kind: FailureKind
) -> None:
    write_evaluator(folder, body)
    with pytest.raises(EvaluatorFault) as caught:
        await Scorer(sandbox).evaluate(case_at(folder, 0.5), folder / "submission")
    assert caught.value.kind is kind


async def test_sandbox_that_does_not_start_is_its_own_kind(folder: Path) -> None:
    with pytest.raises(EvaluatorFault) as caught:
        await Scorer(LocalRunOnce(broken=True)).evaluate(case_at(folder), folder / "submission")
    assert caught.value.kind is SANDBOX


async def test_equal_output_is_evaluated_once_and_a_fault_is_never_remembered(
    folder: Path, sandbox: LocalRunOnce
) -> None:
    scorer, case, output = Scorer(sandbox), case_at(folder), folder / "submission"
    write_evaluator(folder, "print(json.dumps(GOOD))")
    first = await scorer.evaluate(case, output, "a" * 64)
    assert await scorer.evaluate(case, output, "a" * 64) == first
    assert len(sandbox.seen) == 1
    await scorer.evaluate(case, output, "b" * 64)
    await scorer.evaluate(case, output)
    assert len(sandbox.seen) == 3
    write_evaluator(folder, "raise SystemExit(4)")
    for _ in range(2):
        with pytest.raises(EvaluatorFault):
            await scorer.evaluate(case, output, "c" * 64)
    assert len(sandbox.seen) == 5
