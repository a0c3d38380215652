"""Ids are golden: a change here orphans every stored run."""

from __future__ import annotations

from typing import Any

import pytest

from fde_ray.model.ids import GradeIdentity, RunIdentity, grade_id, run_id, shard_of
from fde_ray.model.specs import Condition, Limits, System
from fde_ray.model.states import Channel, ConditionKind

RUN = RunIdentity(
    case_id="017",
    visible_hash="a" * 64,
    prompt_hash="b" * 64,
    condition=Condition(kind=ConditionKind.INTERACT_REQ),
    system=System(name="one", scaffold="minimal", model="openai/m"),
    scaffold_lock="c" * 64,
    channel=Channel.TEXT,
    solve_pack="d" * 64,
    information_hash="e" * 64,
    customer_model="zai/glm-5.3",
    customer_temperature=None,
    customer_max_tokens=10_000,
    customer_failure="placeholder",
    detectors=("m/1", "m/2", "m/3", "m/4", "m/5"),
    limits=Limits(),
    budget_usd_per_run=None,
    repeat=1,
)
GRADE = GradeIdentity(
    scoring_hash="1" * 64,
    gt_hash="2" * 64,
    information_hash="e" * 64,
    grade_pack="3" * 64,
    panel=("m/1", "m/2", "m/3", "m/4", "m/5"),
    panel_time_s=1800,
    panel_steps=60,
    judges=("m/1", "m/2", "m/3", "m/4", "m/5"),
    passthrough=False,
    panel_stop="three_agree",
    evaluator_exception="fault",
)


def test_run_id_golden_vector() -> None:
    assert run_id(RUN) == "47945b02d8e105ca4fbd3f9a81999a66"


def test_grade_id_golden_vector() -> None:
    assert grade_id(GRADE) == "0c97eabb46a65b5fa0bb0b52fc7485a5"


@pytest.mark.parametrize(
    "change",
    [
        {"case_id": "036"},
        {"visible_hash": "0" * 64},
        {"prompt_hash": "0" * 64},
        {"condition": Condition(kind=ConditionKind.ORACLE, percent=0)},
        {"system": System(name="one", scaffold="minimal", model="openai/other")},
        {"system": System(name="one", scaffold="minimal", model="openai/m", settings={"x": 1})},
        {"scaffold_lock": "0" * 64},
        {"channel": Channel.NATIVE},
        {"solve_pack": "0" * 64},
        {"information_hash": "0" * 64},
        {"customer_model": "openai/other"},
        {"customer_temperature": 0.0},
        {"customer_max_tokens": 9_999},
        {"customer_failure": "infra"},
        {"detectors": ("m/2", "m/1", "m/3", "m/4", "m/5")},
        {"budget_usd_per_run": 1.0},
        {"limits": Limits(rounds=29)},
        {"limits": Limits(steps=200)},
        {"repeat": 2},
        {"series": "again"},
        {"protocol_version": "fde-bench/2"},
    ],
    ids=lambda c: next(iter(c)),
)
def test_each_part_of_the_science_changes_the_run_id(change: dict[str, Any]) -> None:
    assert run_id(RUN.evolve(**change)) != run_id(RUN)


def test_the_display_name_of_a_system_is_not_science() -> None:
    renamed = System(name="two", scaffold="minimal", model="openai/m")
    assert run_id(RUN.evolve(system=renamed)) == run_id(RUN)


def test_rule_03_oracle_0_hidden_oracle_1_and_full_are_four_runs() -> None:
    conditions = [
        Condition(kind=ConditionKind.HIDDEN),
        Condition(kind=ConditionKind.FULL),
        Condition(kind=ConditionKind.ORACLE, percent=0),
        Condition(kind=ConditionKind.ORACLE, percent=100),
    ]
    assert len({run_id(RUN.evolve(condition=c)) for c in conditions}) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"scoring_hash": "0" * 64},
        {"gt_hash": "0" * 64},
        {"information_hash": "0" * 64},
        {"grade_pack": "0" * 64},
        {"panel": ("m/2", "m/1", "m/3", "m/4", "m/5")},
        {"judges": ("m/2", "m/1", "m/3", "m/4", "m/5")},
        {"passthrough": True},
        {"panel_stop": "all"},
        {"evaluator_exception": "zero"},
        {"panel_time_s": 1801},
        {"panel_steps": 61},
        {"protocol_version": "fde-bench/2"},
    ],
    ids=lambda c: next(iter(c)),
)
def test_each_part_of_grading_changes_the_grade_id(change: dict[str, Any]) -> None:
    assert grade_id(GRADE.evolve(**change)) != grade_id(GRADE)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("time", "1s"),
        ("rounds", 1),
        ("pushes", 1),
        ("steps", 1),
        ("cpu", 1.0),
        ("memory", "1MiB"),
        ("disk", "1MiB"),
        ("processes", 8),
        ("archive", "1MiB"),
        ("pause_cap", "1s"),
    ],
)
def test_each_limit_changes_the_run_id(name: str, value: Any) -> None:
    assert run_id(RUN.evolve(limits=Limits(**{name: value}))) != run_id(RUN)


def test_a_run_hashes_to_one_of_256_shards() -> None:
    assert shard_of(run_id(RUN)) == int(run_id(RUN)[:2], 16)
