"""The shipped cases are judged offline exactly as their probes say."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from fde_ray.cases.package import load_case
from fde_ray.cases.probes import SYSTEM_PROBES, load_probe
from fde_ray.cases.records import Case
from fde_ray.llm.offline_matching import covers
from fde_ray.protocol.questions import units

FOLDER = Path(__file__).parents[2] / "cases"
CASES = ("017_cold_rolling_sequencing", "036_fermentation_outcomes")
VAGUE = (
    "Anything special about the data?",
    "What should we be careful about in these tables?",
    "What are your rules?",
    "Is there something odd in the files?",
    "Are there requirements that I should know about?",
)


@cache
def case_in(folder: str) -> Case:
    return load_case(FOLDER / folder)


def covered_by(case: Case, unit: str) -> list[str]:
    return [p.key for p in case.points if covers(unit, p.requirement, p.triggers)]


@pytest.mark.parametrize("folder", CASES)
@pytest.mark.parametrize("name", SYSTEM_PROBES)
def test_the_questions_of_a_probe_cover_what_it_says(folder: str, name: str) -> None:
    case = case_in(folder)
    probe = load_probe(case, name)
    asked = [unit for questions in probe.rounds for q in questions for unit in units(q)]
    matched = [covered_by(case, unit) for unit in asked]
    assert {key for keys in matched for key in keys} == set(probe.covered)
    assert sum(bool(keys) for keys in matched) == probe.relevant_units
    assert len(asked) == probe.units


@pytest.mark.parametrize("folder", CASES)
def test_triggers_cover_their_own_point_and_vague_questions_none(folder: str) -> None:
    case = case_in(folder)
    for point in case.points:
        for trigger in point.triggers:
            assert covered_by(case, trigger) == [point.key], trigger
    for question in VAGUE:
        assert covered_by(case, question) == [], question


def test_importing_the_router_loads_no_heavy_library() -> None:
    code = "import sys, fde_ray.llm.router; sys.exit('litellm' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
