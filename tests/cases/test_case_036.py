"""Case 036: the numbers its admission rests on, and what its evaluator refuses."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fde_ray.cases.admission import RULES, RuleResult, check_case
from fde_ray.cases.authoring.mutants import files_under, mutated, read_mutant
from fde_ray.cases.authoring.probe_runs import Evaluation, evaluate_files, evaluate_folder
from fde_ray.cases.authoring.vendoring import is_current
from fde_ray.cases.normalising import normalised
from fde_ray.cases.package import load_case
from fde_ray.cases.probes import SYSTEM_PROBES, list_probes, load_probe
from fde_ray.cases.records import Case

ROOT = Path(__file__).parents[2] / "cases" / "036_fermentation_outcomes"
SEALED = ROOT / "sealed"
TARGET = "predictions.csv"
PROBES = sorted(path.name for path in (SEALED / "probes").iterdir())
MUTANTS = sorted(path.stem for path in (SEALED / "mutants").glob("*.json"))
HEADER = "batch_id,titre_g_l,duration_h,productivity_g_l_h\n"


@pytest.fixture(scope="module")
def case() -> Case:
    return load_case(ROOT)


@pytest.fixture(scope="module")
def best() -> str:
    return (SEALED / "best_solution" / TARGET).read_text(encoding="utf-8")


def scored(text: str | bytes) -> Evaluation:
    content = text if isinstance(text, bytes) else text.encode()
    return evaluate_files(ROOT, {TARGET: content})


def test_the_package_loads_with_five_points_and_all_system_probes(case: Case) -> None:
    assert case.case_id == "036"
    assert [point.issue_type.value for point in case.points].count("ambiguous") == 1
    assert set(SYSTEM_PROBES) <= set(list_probes(case))
    assert case.submission_schema.files[0].row_set == "decision"


def test_the_evaluator_carries_the_current_strict_reader() -> None:
    assert is_current(SEALED / "evaluator.py")


def test_the_reference_scores_exactly_one(case: Case) -> None:
    evaluation = evaluate_folder(ROOT, SEALED / "best_solution")
    assert evaluation.result is not None
    assert evaluation.result["score"] == 1.0
    assert evaluation.result["raw"] == case.reference.raw
    assert evaluation.result["components"] == case.reference.components
    assert evaluation.result["scoring_hash"] == case.scoring_hash


@pytest.mark.parametrize("name", PROBES)
def test_each_probe_scores_as_expected_to_the_last_digit(case: Case, name: str) -> None:
    probe = load_probe(case, name)
    evaluation = evaluate_files(ROOT, normalised(case.submission_schema, probe.files))
    assert evaluation.result is not None
    assert repr(float(evaluation.result["score"])) == probe.expect.score
    assert evaluation.valid == probe.expect.valid
    assert evaluation.result["stage"] == probe.expect.stage


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_raises_exactly_its_codes(name: str) -> None:
    mutant = read_mutant((SEALED / "mutants" / f"{name}.json").read_text(encoding="utf-8"), name)
    evaluation = evaluate_files(ROOT, mutated(files_under(SEALED / "best_solution"), mutant.edits))
    assert evaluation.codes == mutant.codes
    assert evaluation.valid == (mutant.side != "outside")
    if mutant.side == "neutral":
        assert evaluation.score < 1.0


@pytest.fixture(scope="module")
def verdicts(case: Case) -> dict[str, RuleResult]:
    return {result.rule: result for result in check_case(case)}


@pytest.mark.parametrize("rule", RULES)
def test_each_admission_rule_holds_or_is_decided_elsewhere(
    verdicts: dict[str, RuleResult], rule: str
) -> None:
    expected = None if rule in ("A9", "A10", "A21", "A22") else True
    assert verdicts[rule].ok is expected, verdicts[rule].detail


def test_scripted_systems_rise_with_what_they_know(case: Case) -> None:
    names = ("oracle_25", "oracle_50", "oracle_75", "reference")
    scores = [float(load_probe(case, name).expect.score) for name in names]
    assert scores == sorted(set(scores))
    assert scores[-1] == 1.0
    known = [set(load_probe(case, name).knows) for name in names]
    assert known[0] < known[1] < known[2] < known[3]


def test_foreign_deliverables_hold_the_same_decisions_as_their_target_form(case: Case) -> None:
    for name in ("greedy_full", "oracle_50"):
        probe = load_probe(case, name)
        assert probe.layout == "foreign"
        assert TARGET not in probe.files
        text = normalised(case.submission_schema, probe.files)[TARGET].decode()
        assert text == (ROOT / "authoring" / "outputs" / f"{name}.csv").read_text(encoding="utf-8")


def test_point_parameters_move_the_truth_but_no_visible_byte() -> None:
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); import generate as g\n"
        "world = g.build_world()\n"
        "params = json.loads(sys.stdin.read())\n"
        "truths = [g.truth_text(world, {**params, **change}) for change in params['changes']]\n"
        "print(json.dumps([g.visible_files(world), truths]))"
    )
    params = json.loads((SEALED / "params.json").read_text(encoding="utf-8"))
    admission = json.loads((SEALED / "points.json").read_text(encoding="utf-8"))
    others = [{p["param"]: v} for p in admission.values() for v in p["alternatives"]]
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, str(ROOT / "authoring")],
        input=json.dumps({**params, "changes": [{}, *others]}).encode(),
        capture_output=True,
        check=True,
        cwd=ROOT.parents[1],
    )
    visible, truths = json.loads(done.stdout)
    for name, text in visible.items():
        assert (ROOT / "data" / name).read_text(encoding="utf-8") == text
    assert (SEALED / "truth" / "outcomes.csv").read_text(encoding="utf-8") == truths[0]
    scoring_only = [i for i, change in enumerate(others) if "optimistic_tolerance_share" in change]
    for index, text in enumerate(truths[1:]):
        assert (text == truths[0]) == (index in scoring_only)


HOSTILE: dict[str, tuple[Callable[[str], str | bytes], str, int]] = {
    "an empty file": (lambda best: "", "missing_column", 3),
    "a header alone": (lambda best: HEADER, "coverage", 0),
    "binary noise": (lambda best: bytes(range(256)), "format.encoding", 0),
    "a nul byte": (lambda best: best + "\0", "format.encoding", 0),
    "an open quote": (lambda best: best + '"F1520', "format.csv", 0),
    "a short row": (lambda best: best + "F1520,1\n", "format.csv", 0),
    "too many rows": (lambda best: best + "F1,1,20,1\n" * 6000, "format.rows", 0),
    "a big file": (lambda best: best + "#" * (2 << 20), "format.size", 0),
    "a column twice": (
        lambda best: best.replace("productivity_g_l_h", "productivity_g_l_h,titre_g_l", 1),
        "format.duplicate",
        0,
    ),
    "a boolean": (lambda best: HEADER + "F1520,true,60,1\n", "format.number", 0),
    "a negative infinity": (lambda best: HEADER + "F1520,-inf,60,1\n", "format.number", 0),
    "a hexadecimal number": (lambda best: HEADER + "F1520,0x10,60,1\n", "format.number", 0),
    "a nameless batch": (lambda best: HEADER + ",1,60,1\n", "format.key", 0),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_by_name(best: str, name: str) -> None:
    make, code, status = HOSTILE[name]
    evaluation = scored(make(best))
    assert evaluation.status == status
    assert evaluation.codes[0] == code
    assert not evaluation.valid
    assert evaluation.score == 0.0


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_something_else_in_place_of_the_file_is_refused(tmp_path: Path, kind: str) -> None:
    place = tmp_path / TARGET
    if kind == "link":
        place.symlink_to(SEALED / "best_solution" / TARGET)
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()
    evaluation = evaluate_folder(ROOT, tmp_path)
    assert evaluation.status == 0
    assert evaluation.codes[0] in ("format.link", "format.file")
    assert not evaluation.valid


def test_a_broken_sealed_folder_is_our_fault_and_no_score(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-I", "-S", str(SEALED / "evaluator.py")),
            *("--data-dir", str(ROOT / "data"), "--sealed-dir", str(tmp_path)),
            *("--submission-dir", str(SEALED / "best_solution")),
        ],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 4
    assert done.stdout == b""
