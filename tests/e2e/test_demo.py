"""`fde-ray demo` end to end: its numbers follow from the probes, to the last digit."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fde_ray.cases.package import load_cases
from fde_ray.cases.probes import load_probe
from fde_ray.cases.records import Case, Probe
from fde_ray.engine.runtime import shipped_cases
from fde_ray.model.states import GradeState, SolveEnd
from tests.e2e.driving import results, said

pytestmark = pytest.mark.sandbox

SYSTEMS = (
    "do_nothing",
    "greedy_full",
    "literal",
    "oracle_25",
    "oracle_50",
    "oracle_75",
    "reference",
)


class Demo(NamedTuple):
    home: Path
    summary: dict[str, Any]

    def metrics(self, condition: str, system: str) -> dict[str, Any]:
        (group,) = (
            g
            for g in self.summary["groups"]
            if (g["condition"], g["system"]) == (condition, system)
        )
        metrics: dict[str, Any] = group["metrics"]
        return metrics


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    home = tmp_path_factory.mktemp("demo")
    return Demo(home, said(home, "demo", "--json"))


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return list(load_cases(shipped_cases()).values())


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def shares(cases: list[Case], system: str) -> list[tuple[Case, Probe]]:
    return [(case, load_probe(case, system)) for case in cases]


def test_every_planned_run_is_scored_and_labelled_offline(demo: Demo) -> None:
    assert demo.summary["planned"] == demo.summary["scored"] == 2 * 2 * len(SYSTEMS)
    assert set(demo.summary["offline"]) == {
        "agent",
        "customer",
        "detector",
        "extractor",
        "judge",
    }


@pytest.mark.parametrize("condition", ["hidden", "interact_req"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_delivery_metrics_follow_from_the_probes(
    demo: Demo, cases: list[Case], condition: str, system: str
) -> None:
    probes = [probe for _, probe in shares(cases, system)]
    scores = [float(probe.expect.score) for probe in probes]
    valid = [probe.expect.valid for probe in probes]
    got = demo.metrics(condition, system)
    assert got["quality"]["value"] == mean(scores)
    assert got["dsr"]["value"] == sum(score >= 1 for score in scores) / len(scores)
    assert got["pass_at_k"]["value"] == got["pass_hat_k"]["value"] == sum(valid) / len(valid)


@pytest.mark.parametrize("system", SYSTEMS)
def test_clarification_metrics_follow_from_the_probes(
    demo: Demo, cases: list[Case], system: str
) -> None:
    pairs = shares(cases, system)
    got = demo.metrics("interact_req", system)
    recalls = [Fraction(len(p.covered), len(c.points)) for c, p in pairs]
    assert got["recall"]["value"] == mean([float(r) for r in recalls])
    first = [
        Fraction(len(p.per_round_covered[0]) if p.per_round_covered else 0, len(c.points))
        for c, p in pairs
    ]
    assert got["kqc1"]["value"] == mean([float(share) for share in first])
    redundant = [float(p.units - p.relevant_units) for _, p in pairs]
    assert got["redundant"]["value"] == mean(redundant)
    if not any(p.units for _, p in pairs):
        assert got["precision"]["value"] is None
        assert got["ask_f1"]["value"] is None
        return
    precisions = [Fraction(p.relevant_units, p.units) for _, p in pairs]
    assert got["precision"]["value"] == mean([float(p) for p in precisions])
    f1 = [
        2 * p * r / (p + r) if p + r else Fraction(0)
        for p, r in zip(precisions, recalls, strict=True)
    ]
    assert got["ask_f1"]["value"] == mean([float(value) for value in f1])
    atc = [
        Fraction(
            sum((turn + 1) * len(keys) for turn, keys in enumerate(p.per_round_covered)),
            len(p.covered),
        )
        for _, p in pairs
        if p.covered
    ]
    assert got["atc"]["value"] == (mean([float(value) for value in atc]) if atc else None)


def test_rule_02_hidden_runs_have_no_clarification_metrics(demo: Demo) -> None:
    for system in SYSTEMS:
        assert demo.metrics("hidden", system)["recall"]["value"] is None
    for result in results(demo.home, demo.summary["sweeps"][0]).values():
        if result.condition == "hidden":
            assert result.rounds == ()
            assert result.metrics is None


def test_rule_16_nothing_delivered_is_a_zero_with_its_own_signature(demo: Demo) -> None:
    found = [
        r
        for r in results(demo.home, demo.summary["sweeps"][0]).values()
        if r.system == "do_nothing"
    ]
    assert len(found) == 4
    for result in found:
        assert (result.solve_end, result.pushes) == (SolveEnd.NO_DELIVERY, 3)
        assert (result.grade, result.score, result.valid) == (GradeState.SCORED, 0.0, False)
        assert result.zero_signature == "no_artifact"
        assert result.routes == ()


def test_rule_24_foreign_layouts_really_go_through_three_extractors(
    demo: Demo, cases: list[Case]
) -> None:
    layouts = {
        (case.case_id, name): load_probe(case, name).layout for case in cases for name in SYSTEMS
    }
    assert {case for (case, _), layout in layouts.items() if layout == "foreign"} == {"017", "036"}
    for result in results(demo.home, demo.summary["sweeps"][0]).values():
        if layouts[result.case_id, result.system] == "foreign":
            assert [r.provenance.verdict for r in result.routes if r.provenance] == ["clean"] * 3
            assert result.chosen_route == 0


def test_a_second_demo_repeats_nothing_and_says_the_same(demo: Demo) -> None:
    before = {p: p.stat().st_mtime_ns for p in (demo.home / "objects").rglob("result.json")}
    assert said(demo.home, "demo", "--json") == demo.summary
    after = {p: p.stat().st_mtime_ns for p in (demo.home / "objects").rglob("result.json")}
    assert after == before
    assert len(before) == demo.summary["planned"]


def test_no_canary_of_a_case_reached_a_solving_run(demo: Demo, cases: list[Case]) -> None:
    canaries = [case.meta.canary.encode() for case in cases]
    runs = demo.home / "objects" / "local" / "runs"
    for path in runs.glob("*/*/attempts/**/*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(canary in content for canary in canaries), path
