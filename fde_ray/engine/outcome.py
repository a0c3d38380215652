"""Assembles the result of a run from what was seen. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fde_ray import __version__
from fde_ray.cases.records import Case
from fde_ray.gateway.pauses import ClockTotals
from fde_ray.model.base import digest
from fde_ray.model.grading import PointCoverage, Route
from fde_ray.model.ids import PROTOCOL_VERSION
from fde_ray.model.plan import RunPlan
from fde_ray.model.profile import Profile
from fde_ray.model.result import AttemptNote, BudgetNote, CostLine, Pause, RunResult, Versions
from fde_ray.model.states import GradeState, SolveEnd
from fde_ray.protocol.deviations import active
from fde_ray.protocol.dialogue import DialogueState
from fde_ray.protocol.facts import facts_of
from fde_ray.protocol.metrics import clarification
from fde_ray.protocol.packs import PromptPack
from fde_ray.protocol.signatures import Signature, zero_signature
from fde_ray.protocol.votes import PASSTHROUGH, Chosen
from fde_ray.sandbox.records import SandboxFacts

OFFLINE = "offline/"


class Evidence(NamedTuple):
    """Everything that a result is made of."""

    plan: RunPlan
    case: Case
    pack: PromptPack
    dialogue: DialogueState
    solve_end: SolveEnd
    attempts: tuple[AttemptNote, ...]
    clock: ClockTotals | None
    pauses: tuple[Pause, ...]
    tree_hash: str | None
    files: int | None
    routes: tuple[Route, ...]
    chosen: Chosen
    coverage: tuple[PointCoverage, ...] | None
    """None: no channel, or no ballot at all."""
    cost: tuple[CostLine, ...]
    shortened_calls: int | None
    """Replies that the run's budget cut short; None = not known."""
    facts: SandboxFacts
    profile: Profile


def assembled(e: Evidence) -> RunResult:
    plan, has_questions = e.plan, e.plan.condition.kind.has_questions
    return RunResult(
        run_id=plan.run_id,
        grade_id=plan.grade_id,
        sweep=plan.sweep,
        case_id=plan.case_id,
        case_title=e.case.meta.title,
        condition=plan.condition.label,
        oracle_points=plan.oracle_points,
        system=plan.system.name,
        scaffold=plan.system.scaffold,
        model=plan.system.model,
        repeat=plan.repeat,
        channel=plan.channel,
        offline=offline_roles(plan),
        unsafe_sandbox=e.facts.unsafe,
        attempts=e.attempts,
        charged_s=None if e.clock is None else round(e.clock.charged_s, 3),
        paused_s=None if e.clock is None else round(e.clock.paused_s, 3),
        pauses=e.pauses,
        solve_end=e.solve_end,
        timed_out=e.solve_end is SolveEnd.TIME_LIMIT,
        rounds=e.dialogue.rounds,
        refused_batches=e.dialogue.refused,
        detections=e.dialogue.detections,
        pushes=e.dialogue.pushes,
        summary=e.dialogue.last_text,
        tree_hash=e.tree_hash,
        files=e.files,
        routes=tuple(sorted(e.routes, key=_place)),
        grade=e.chosen.grade,
        score=e.chosen.score,
        valid=e.chosen.valid,
        outcome=e.chosen.outcome,
        zero_signature=_signature(e.chosen, e.routes),
        chosen_route=e.chosen.route,
        coverage=e.coverage if has_questions else None,
        metrics=clarification(e.coverage, e.dialogue.units, len(e.case.points))
        if has_questions
        else None,
        cost=e.cost,
        budget=_budget(e),
        deviations=active(facts_of(plan, e.routes, executable=e.case.meta.program is not None)),
        versions=_versions(e),
    )


def _place(route: Route) -> tuple[bool, int]:
    """Passthrough, then the order of the panel; a route that ran again ran last."""
    return route.model != PASSTHROUGH, route.route


def offline_roles(plan: RunPlan) -> tuple[str, ...]:
    """Return the roles whose models are the offline provider, whether or not they spoke."""
    asked = {
        "agent": (plan.system.model,),
        "customer": (plan.customer.model,) if plan.condition.kind.has_questions else (),
        "detector": plan.detectors if plan.condition.kind.has_questions else (),
        "extractor": plan.panel.models,
        "judge": plan.judges if plan.condition.kind.has_questions else (),
    }
    return tuple(
        role for role, models in asked.items() if any(m.startswith(OFFLINE) for m in models)
    )


def _budget(e: Evidence) -> BudgetNote:
    """Output is shrunk for a run's own budget alone: without one, nothing was cut short."""
    has_own = e.plan.budget_usd_per_run is not None
    return BudgetNote(
        stopped=e.solve_end is SolveEnd.BUDGET,
        shortened_calls=e.shortened_calls if has_own else 0,
    )


def _signature(chosen: Chosen, routes: Sequence[Route]) -> Signature | None:
    if chosen.grade is not GradeState.SCORED or chosen.score != 0:
        return None
    route = next((r for r in routes if r.route == chosen.route), None)
    evaluation = None if route is None else route.evaluation
    return zero_signature(evaluation, chosen.outcome)


def _versions(e: Evidence) -> Versions:
    identity = e.plan.identity
    return Versions(
        fde_ray=__version__,
        protocol=PROTOCOL_VERSION,
        solve_pack=identity.solve_pack,
        grade_pack=e.plan.grade_identity.grade_pack,
        case_version=e.case.meta.version,
        visible_hash=identity.visible_hash,
        information_hash=identity.information_hash,
        gt_hash=e.plan.grade_identity.gt_hash,
        scoring_hash=e.plan.grade_identity.scoring_hash,
        scaffold_lock=identity.scaffold_lock,
        profile=digest(e.profile),
        sandbox={
            "runtime": e.facts.runtime,
            "version": e.facts.version,
            "limits": e.facts.limits,
        },
    )
