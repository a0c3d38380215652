"""Turns a SweepSpec into planned runs: the one place where ids are made.

Pure over its inputs: spec, loaded cases, prompt pack, scaffolds. `Controller.submit` stores the
plans; nothing later looks at the spec again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fde_ray.cases.probes import list_probes
from fde_ray.cases.records import Case
from fde_ray.cases.staging import data_files
from fde_ray.model.base import sha256_hex
from fde_ray.model.errors import UserError
from fde_ray.model.ids import GradeIdentity, RunIdentity, grade_id, run_id
from fde_ray.model.plan import RunPlan
from fde_ray.model.specs import Cell, SweepSpec, System
from fde_ray.model.states import Channel, ConditionKind
from fde_ray.protocol.conditions import oracle_points, solving_prompt
from fde_ray.protocol.packs import PromptPack
from fde_ray.scaffolds import Scaffold

WORKSPACE = "/workspace"
SCRIPTED = "scripted"
"""The scaffold whose model names a probe of the case."""


class Planner(NamedTuple):
    """What planning needs besides the spec."""

    cases: Mapping[str, Case]
    pack: PromptPack
    scaffold: Callable[[str], Scaffold]


def plan_sweep(spec: SweepSpec, planner: Planner) -> tuple[RunPlan, ...]:
    """Return one plan per cell, in admission order; SpecError or CaseError if a name is unknown."""
    for system in spec.systems:
        planner.scaffold(system.scaffold).check(system)
        if system.scaffold == SCRIPTED:
            _check_probe(system, spec.cases, planner.cases)
    return tuple(_plan(spec, cell, planner) for cell in spec.cells())


def _check_probe(system: System, case_ids: Sequence[str], cases: Mapping[str, Case]) -> None:
    probe = system.model.rpartition("/")[2]
    for case_id in case_ids:
        known = list_probes(cases[case_id])
        if probe not in known:
            raise UserError(
                f"system {system.name!r}: case {case_id} has no probe {probe!r};"
                f" known: {', '.join(known)}"
            )


def chosen_points(case: Case, cell: Cell) -> tuple[str, ...] | None:
    """Return the keys whose answers an oracle run is told; None for the other conditions."""
    if cell.condition.percent is None:
        return None
    keys = tuple(point.key for point in case.points)
    return oracle_points(case.slug, cell.repeat, cell.condition.percent, keys)


def _plan(spec: SweepSpec, cell: Cell, planner: Planner) -> RunPlan:
    case = planner.cases[cell.case_id]
    scaffold = planner.scaffold(cell.system.scaffold)
    channel = cell.system.channel or scaffold.channel
    points = chosen_points(case, cell)
    prompt = _prompt(case, cell, points, planner.pack)
    run = _run_identity(spec, cell, case, channel, scaffold.lock_hash, prompt, planner.pack)
    grade = _grade_identity(spec, case, planner.pack)
    return RunPlan(
        run_id=run_id(run),
        grade_id=grade_id(grade),
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


def _prompt(case: Case, cell: Cell, points: tuple[str, ...] | None, pack: PromptPack) -> str:
    return solving_prompt(
        pack,
        cell.condition,
        workspace=WORKSPACE,
        data_files=data_files(case),
        instruction=case.instruction,
        information=case.information if cell.condition.kind is ConditionKind.FULL else "",
        answers=tuple(case.point(key).answer for key in points or ()),
    )


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
