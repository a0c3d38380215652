"""An executable case through the command line: programs are delivered, run in boxes, and judged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fde_ray.cases.authoring.writers import write_manifest
from fde_ray.cases.package import load_case
from fde_ray.model.result import RunResult
from tests.e2e.hostile import (
    by_system,
    fde_ray,
    leftovers,
    scripted,
    write_profile,
    write_spec,
)
from tests.support.executable_case import (
    CASE_ID,
    ENTRY,
    build,
    with_helper,
    write_probe,
    write_probe_unseen,
)
from tests.support.thief import thief

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
]

SCORES = {
    "reference": 1.0,
    "foreign_modules": 1.0,
    "bypass_crash": 0.0,
    "thief": 0.0,
    "do_nothing": 0.0,
}
NOTHING = {"valid": False, "score": "0.0", "stage": "constraint"}
BUSY = {"runs": 5, "gradings": 5}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("executable")
    root = build(home / "cases", probes=tuple(SCORES))
    case = load_case(root)
    write_probe(case, "foreign_modules", with_helper())
    stolen = {ENTRY: thief(root / "sealed", 80).encode()}
    write_probe_unseen(case, "thief", stolen, NOTHING)
    write_manifest(root)
    profile = write_profile(home, None, cases=str(home / "cases"), concurrency=BUSY)
    for name, passthrough in (("panel", False), ("direct", True)):
        spec = write_spec(
            home, name, scripted(*SCORES), cases=[CASE_ID], panel={"passthrough": passthrough}
        )
        done = fde_ray(home, "sweep", "submit", str(spec), "--profile", str(profile))
        assert done.code == 0, done.err
    return home


@pytest.fixture(scope="module", params=["panel", "direct"])
def graded(home: Path, request: pytest.FixtureRequest) -> dict[str, RunResult]:
    return by_system(home, request.param)


@pytest.mark.parametrize("system", list(SCORES))
def test_each_program_is_graded_by_its_answers(graded: dict[str, RunResult], system: str) -> None:
    result = graded[system]
    assert (result.score, result.valid) == (SCORES[system], SCORES[system] == 1.0)


@pytest.mark.parametrize("system", ["bypass_crash", "thief"])
def test_a_program_without_a_plan_has_the_evaluators_verdict(
    graded: dict[str, RunResult], system: str
) -> None:
    evaluations = [r.evaluation for r in graded[system].routes if r.evaluation is not None]
    code = {"bypass_crash": "no_answer", "thief": "plan_form"}[system]
    assert evaluations
    for evaluation in evaluations:
        assert (evaluation.stage, evaluation.score) == ("constraint", 0.0)
        assert [(v.code, v.count) for v in evaluation.violations] == [(code, 3)]


def test_modules_come_along_by_name_and_from_the_agents_files(home: Path) -> None:
    for sweep in ("panel", "direct"):
        for route in by_system(home, sweep)["foreign_modules"].routes:
            if route.report is None:
                continue
            came_from = {name: refs[0].path for name, refs in route.report.sources.items()}
            assert came_from == {ENTRY: "refill_policy.py", "stock.py": "stock.py"}
            assert route.provenance is not None
            assert route.provenance.verdict == "clean"


def test_only_what_is_in_doubt_asks_the_panel(home: Path) -> None:
    models = {
        system: [route.model for route in result.routes]
        for system, result in by_system(home, "direct").items()
    }
    assert models["reference"] == models["bypass_crash"] == ["passthrough"]
    assert "passthrough" not in models["foreign_modules"]


def test_nothing_is_left_running(home: Path) -> None:
    assert leftovers(home) == []
