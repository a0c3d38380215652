"""Turns a SweepSpec into planned runs: the one place where ids are made.

Pure over its inputs: spec, loaded cases, prompt pack, scaffolds. `Controller.submit` stores the
plans; nothing later looks at the spec again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from fde_ray.cases.records import Case
from fde_ray.cases.staging import data_files
from fde_ray.model.base import sha256_hex
from fde_ray.model.errors import UserError
from fde_ray.model.ids import GradeId, GradeIdentity, RunIdentity, grade_id, run_id
from fde_ray.model.plan import RunPlan
from fde_ray.model.specs import Cell, Condition, SweepSpec
from fde_ray.model.states import Channel, ConditionKind
from fde_ray.protocol.conditions import oracle_points, solving_prompt
from fde_ray.protocol.packs import PromptPack
from fde_ray.scaffolds import Scaffold

from .naming import Names, name_faults

WORKSPACE = "/workspace"


class Planner(NamedTuple):
    """What planning needs besides the spec."""

    cases: Mapping[str, Case]
    pack: PromptPack
    scaffold: Callable[[str], Scaffold]


def plan_sweep(spec: SweepSpec, planner: Planner) -> tuple[RunPlan, ...]:
    """Return one plan per cell, in admission order; UserError if a name is unknown."""
    for fault in name_faults(spec, Names(planner.cases, planner.scaffold)):
        raise UserError(fault.message)
    desk = _Desk(spec, planner)
    return tuple(desk.plan(cell) for cell in spec.cells())


def chosen_points(case: Case, cell: Cell) -> tuple[str, ...] | None:
    """Return the keys whose answers an oracle run is told; None for the other conditions."""
    if cell.condition.percent is None:
        return None
    keys = tuple(point.key for point in case.points)
    return oracle_points(case.slug, cell.repeat, cell.condition.percent, keys)


class _Desk:
    """Plans cell after cell; what many cells share is made once."""

    def __init__(self, spec: SweepSpec, planner: Planner) -> None:
        self._spec, self._planner = spec, planner
        self._files: dict[str, tuple[str, ...]] = {}
        self._prompts: dict[_PromptKey, str] = {}
        self._grades: dict[str, tuple[GradeIdentity, GradeId]] = {}

    def plan(self, cell: Cell) -> RunPlan:
        spec, pack = self._spec, self._planner.pack
        case = self._planner.cases[cell.case_id]
        scaffold = self._planner.scaffold(cell.system.scaffold)
        channel = cell.system.channel or scaffold.channel
        points = chosen_points(case, cell)
        prompt = self._prompt(case, cell.condition, points)
        run = _run_identity(spec, cell, case, channel, scaffold.lock_hash, prompt, pack)
        grade, grade_name = self._grade(case)
        return RunPlan(
            run_id=run_id(run),
            grade_id=grade_name,
            sweep=spec.name,
            case_id=cell.case_id,
            condition=cell.condition,
            system=cell.system,
            repeat=cell.repeat,
            channel=channel,
            oracle_points=points,
            prompt=prompt,
            limits=spec.limits,
            customer=spec.customer,
            panel=spec.panel,
            detectors=spec.detector_models,
            judges=spec.judge_models,
            prompt_pack=spec.prompt_pack,
            budget_usd_per_run=spec.budget_usd_per_run,
            identity=run,
            grade_identity=grade,
        )

    def _grade(self, case: Case) -> tuple[GradeIdentity, GradeId]:
        if case.case_id not in self._grades:
            grade = _grade_identity(self._spec, case, self._planner.pack)
            self._grades[case.case_id] = grade, grade_id(grade)
        return self._grades[case.case_id]

    def _prompt(self, case: Case, condition: Condition, points: tuple[str, ...] | None) -> str:
        key = case.case_id, condition.kind, points
        if key not in self._prompts:
            self._prompts[key] = solving_prompt(
                self._planner.pack,
                condition,
                workspace=WORKSPACE,
                data_files=self._data_files(case),
                instruction=case.instruction,
                information=case.information if condition.kind is ConditionKind.FULL else "",
                answers=tuple(case.point(point).answer for point in points or ()),
            )
        return self._prompts[key]

    def _data_files(self, case: Case) -> tuple[str, ...]:
        if case.case_id not in self._files:
            self._files[case.case_id] = data_files(case)
        return self._files[case.case_id]


_PromptKey = tuple[str, ConditionKind, tuple[str, ...] | None]


def _run_identity(
    spec: SweepSpec,
    cell: Cell,
    case: Case,
    channel: Channel,
    scaffold_lock: str,
    prompt: str,
    pack: PromptPack,
) -> RunIdentity:
    return RunIdentity(
        case_id=cell.case_id,
        visible_hash=case.visible_hash,
        prompt_hash=sha256_hex(prompt),
        condition=cell.condition,
        system=cell.system,
        scaffold_lock=scaffold_lock,
        channel=channel,
        solve_pack=pack.solve_hash,
        information_hash=case.information_hash,
        customer_model=spec.customer.model,
        customer_temperature=spec.customer.temperature,
        customer_max_tokens=spec.customer.max_tokens,
        customer_failure=spec.customer.failure,
        detectors=spec.detector_models,
        limits=spec.limits,
        budget_usd_per_run=spec.budget_usd_per_run,
        repeat=cell.repeat,
        series=spec.series,
    )


def _grade_identity(spec: SweepSpec, case: Case, pack: PromptPack) -> GradeIdentity:
    return GradeIdentity(
        scoring_hash=case.scoring_hash,
        gt_hash=case.gt_hash,
        information_hash=case.information_hash,
        grade_pack=pack.grade_hash,
        panel=spec.panel.models,
        panel_time_s=spec.panel.time,
        panel_steps=spec.panel.steps,
        judges=spec.judge_models,
        passthrough=spec.panel.passthrough,
        panel_stop=spec.panel.panel_stop,
        evaluator_exception=spec.panel.evaluator_exception,
    )
