import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fde_ray.cases.admission import RULES, Bench, RuleResult, check_case
from fde_ray.cases.admission.judging import covers_by_words, question_units
from fde_ray.cases.authoring.probe_runs import Evaluation
from fde_ray.cases.package import load_case
from fde_ray.cases.records import Case, Point

Spoil = Callable[[str, bytes | str], Path]
QUICK = sorted(set(RULES) - {"A9", "A10", "A11", "A16", "A21", "A22"}, key=lambda r: int(r[1:]))


def one(case: Case, rule: str, evaluate: Callable[..., Evaluation] | None = None) -> RuleResult:
    (result,) = check_case(case, rules=[rule], evaluate=evaluate)
    return result


def scored(score: float, *, valid: bool = True) -> Callable[..., Evaluation]:
    """Return an evaluator double that says the same to everything."""

    def evaluate(_: Path, __: Mapping[str, bytes]) -> Evaluation:
        result = {"valid": valid, "score": score, "violations": [], "stage": "quality"}
        return Evaluation(0, result, b"", "")

    return evaluate


def test_the_case_passes_every_quick_rule(bench: Bench) -> None:
    def remembered(_: Path, files: Mapping[str, bytes]) -> Evaluation:
        return bench.run(files)

    results = check_case(bench.case, rules=QUICK, evaluate=remembered)
    assert [result.rule for result in results] == QUICK
    assert [(r.rule, r.detail) for r in results if not r.ok] == []


@pytest.mark.slow
def test_the_case_passes_the_long_rules(bench: Bench) -> None:
    results = check_case(bench.case, rules=["A11", "A16"])
    assert [(r.rule, r.detail) for r in results if not r.ok] == []


def test_rules_that_need_a_rebuild_or_a_model_say_so(rolling: Case) -> None:
    seen: list[RuleResult] = []
    results = check_case(rolling, rules=["A22", "A9", "A10", "A21"], progress=seen.append)
    assert seen == results
    assert [result.rule for result in results] == ["A9", "A10", "A21", "A22"]
    assert all(result.ok is None and "not run here" in result.detail for result in results)


def test_an_unknown_rule_is_refused(rolling: Case) -> None:
    with pytest.raises(ValueError, match="no admission rule 'A23'"):
        check_case(rolling, rules=["A23"])


@pytest.mark.parametrize("rule", ["A3", "A4", "A5", "A6", "A8", "A15"])
def test_an_evaluator_that_praises_everything_fails(rolling: Case, rule: str) -> None:
    assert one(rolling, rule, scored(1.0)).ok is False


@pytest.mark.parametrize("rule", ["A2", "A8", "A14", "A18"])
def test_an_evaluator_that_condemns_everything_fails(rolling: Case, rule: str) -> None:
    assert one(rolling, rule, scored(0.0, valid=False)).ok is False


@pytest.mark.parametrize("rule", ["A7", "A16"])
def test_mutants_that_nobody_notices_fail(rolling: Case, rule: str) -> None:
    def blind(_: Path, __: Mapping[str, bytes]) -> Evaluation:
        result = {"valid": True, "score": 1.0, "violations": [], "components": {}}
        return Evaluation(0, result, b"", "")

    assert one(rolling, rule, blind).ok is False


def test_a_missing_probe_fails_its_rules(copy: Path) -> None:
    case = load_case(copy)
    assert "do_nothing" in one(case, "A3", scored(0.0)).detail
    assert "knock probes" in one(case, "A6", scored(0.0)).detail
    assert "there is no probe reference" in one(case, "A1").detail


def test_an_answer_in_the_visible_files_is_a_leak(copy: Path, spoil: Spoil) -> None:
    case = load_case(copy)
    assert one(case, "A12").ok
    leaked = load_case(spoil("data/memo.txt", case.points[0].answer))
    assert case.points[0].key in one(leaked, "A12").detail
    told = load_case(spoil("data/memo.txt", "Rolls last 22 km, they say."))
    assert "'22 km'" in one(told, "A12").detail
    marked = load_case(spoil("data/memo.txt", case.meta.canary))
    assert "canary" in one(marked, "A12").detail


def test_an_outdated_quote_must_be_visible(copy: Path, spoil: Spoil) -> None:
    root = spoil("data/mill_notes.txt", "No notes this week.\n")
    assert "quote is not visible" in one(load_case(root), "A12").detail


def test_an_anchor_must_stand_once_under_its_heading(copy: Path, spoil: Spoil) -> None:
    information = (copy / "sealed/information.md").read_text(encoding="utf-8")
    answer = load_case(copy).points[0].answer
    twice = load_case(spoil("sealed/information.md", f"{information}\n{answer}\n"))
    assert "exactly once" in one(twice, "A13").detail
    spoil("sealed/information.md", information)
    points = json.loads((copy / "sealed/points.json").read_text(encoding="utf-8"))
    points["roll_length_limit"]["value"] = 23
    points["length_basis"]["heading"] = "Acceptance"
    moved = one(load_case(spoil("sealed/points.json", json.dumps(points))), "A13").detail
    assert "does not hold 23" in moved
    assert "length_basis: its sentence is not under 'Acceptance'" in moved


def test_a_judge_that_counts_all_or_nothing_fails(rolling: Case) -> None:
    def judged(answer: bool) -> RuleResult:
        def covers(_: str, __: Point) -> bool:
            return answer

        return check_case(rolling, rules=["A20"], covers=covers)[0]

    assert "counts" in judged(True).detail
    assert "misses" in judged(False).detail


def test_words_decide_what_a_question_covers(rolling: Case) -> None:
    point = rolling.point("roll_length_limit")
    assert covers_by_words("Is there a maximum in kilometres per roll set?", point)
    assert not covers_by_words("Who grinds the rolls?", point)
    assert not covers_by_words("", point)
    assert question_units("One? Two？ tail") == ["One", "Two", "tail"]
    assert question_units("?! ?") == []
