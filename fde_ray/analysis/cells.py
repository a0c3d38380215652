"""Planned runs joined with their results: the rows that every number is computed from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from pydantic import Field

from fde_ray.model.base import Record
from fde_ray.model.failures import FAILURES, FailureKind
from fde_ray.model.result import RunResult
from fde_ray.model.states import BudgetCut, ConditionKind, GradeState, Phase, SolveEnd
from fde_ray.model.wording import counted


class Planned(Record):
    """One planned run of a sweep and where it stands."""

    sweep: str
    case_id: str
    condition: str
    """Label, such as `interact_req` or `oracle:25`."""
    system: str
    repeat: int = Field(ge=1)
    run_id: str
    phase: Phase
    grade: GradeState = GradeState.NONE
    failure: FailureKind | None = None
    attempts: int | None = Field(default=None, ge=0)
    """Solving attempts so far; None = unknown here."""


class Status(StrEnum):
    """What a planned run gives to the numbers; exactly one of these, so that they add up."""

    SCORED = "scored"
    NO_MAJORITY = "no_majority"
    GRADE_MISSING = "grade_missing"
    BUDGET_STOPPED = "budget_stopped"
    BUDGET_SHORTENED = "budget_shortened"
    CANCELLED = "cancelled"
    QUARANTINED = "quarantined"
    RESULT_MISSING = "result_missing"
    PENDING = "pending"


STATUS_TEXT = {
    Status.SCORED: "scored",
    Status.NO_MAJORITY: "no majority",
    Status.GRADE_MISSING: "grade missing",
    Status.BUDGET_STOPPED: "budget stopped",
    Status.BUDGET_SHORTENED: "budget shortened",
    Status.CANCELLED: "cancelled",
    Status.QUARANTINED: "quarantined",
    Status.RESULT_MISSING: "result missing",
    Status.PENDING: "pending",
}


class Cell(NamedTuple):
    """A planned run with its result. `result` None = there is none (yet)."""

    planned: Planned
    result: RunResult | None

    @property
    def status(self) -> Status:
        if self.result is None:
            return _status_without_result(self.planned)
        if (cut := self.result.budget_cut) is not None:
            return _CUT[cut]
        if self.result.solve_end is SolveEnd.CANCELLED:
            return Status.CANCELLED
        if not self.result.solve_end.is_graded:
            return Status.QUARANTINED
        if self.result.score is not None:
            return Status.SCORED
        return _UNSCORED.get(self.result.grade, Status.GRADE_MISSING)

    @property
    def score(self) -> float | None:
        """Return the unrounded score, None unless the status is `scored`."""
        scored = self.result is not None and self.status is Status.SCORED
        return self.result.score if self.result is not None and scored else None

    @property
    def valid(self) -> bool | None:
        """Return the validity, None = unknown."""
        scored = self.result is not None and self.status is Status.SCORED
        return self.result.valid if self.result is not None and scored else None

    @property
    def measured(self) -> RunResult | None:
        """Return the result when its dialogue ran to an end of the agent's own, else None."""
        result = self.result
        if result is None or result.budget_cut is not None or not result.solve_end.is_graded:
            return None
        return result

    @property
    def reason(self) -> str:
        """Return why the score is null, in words; "" when there is one."""
        if self.status is Status.SCORED:
            return ""
        kind, text = self.planned.failure, STATUS_TEXT[self.status]
        if self.status is Status.BUDGET_SHORTENED and self.result is not None:
            return f"{text}: {cut_text(self.result)}"
        if kind is None and self.result is not None:
            kind = self.result.outcome
        return text if kind is None else f"{text}: {FAILURES[kind].text}"


def cut_text(result: RunResult) -> str:
    """Return in words what a budget did to a run that is not whole."""
    if result.budget_cut is BudgetCut.STOPPED:
        return "a budget stopped it"
    calls = None if result.budget is None else result.budget.shortened_calls
    if calls is None:
        return "it is not on record whether its budget cut replies of its model short"
    return f"its budget cut {counted(calls, 'reply', 'replies')} of its model short"


_CUT = {
    BudgetCut.STOPPED: Status.BUDGET_STOPPED,
    BudgetCut.SHORTENED: Status.BUDGET_SHORTENED,
}
_UNSCORED = {GradeState.NO_MAJORITY: Status.NO_MAJORITY, GradeState.PENDING: Status.PENDING}


def _status_without_result(planned: Planned) -> Status:
    if planned.phase is Phase.CANCELLED:
        return Status.CANCELLED
    if planned.phase is Phase.QUARANTINED:
        return Status.QUARANTINED
    if planned.phase is Phase.DONE and planned.grade is not GradeState.PENDING:
        return Status.RESULT_MISSING
    return Status.PENDING


def planned_from(results: Iterable[RunResult]) -> tuple[Planned, ...]:
    """Return the plan that `results` alone tell of, for results that were pulled without one.

    Runs that left no result are unknown here; a sweep's own plan is better whenever it exists.
    """
    return tuple(
        Planned(
            sweep=r.sweep,
            case_id=r.case_id,
            condition=r.condition,
            system=r.system,
            repeat=r.repeat,
            run_id=r.run_id,
            phase=Phase.DONE,
            grade=r.grade,
        )
        for r in results
    )


def joined(results: Iterable[RunResult], planned: Sequence[Planned]) -> tuple[Cell, ...]:
    """Return one cell per planned run, sorted, whatever the order of the inputs.

    A run is found by its run_id: names of systems are not science, so two may share one run.
    ValueError: two unequal results of one run (choose a grade first), or two runs in one place.
    """
    by_run: dict[str, RunResult] = {}
    for result in results:
        if by_run.setdefault(result.run_id, result) != result:
            raise ValueError(f"run {result.run_id} has two unequal results; choose one grade")
    places: dict[tuple[str, str, str, int], Planned] = {}
    for plan in planned:
        place = (plan.case_id, plan.condition, plan.system, plan.repeat)
        if places.setdefault(place, plan).run_id != plan.run_id:
            raise ValueError(f"two runs are planned for {place}; report their sweeps apart")
    return tuple(
        Cell(plan, by_run.get(plan.run_id)) for plan in sorted(places.values(), key=_plan_order)
    )


def condition_order(label: str) -> tuple[int, int, str]:
    """Return the sort key of conditions: least known first, oracle levels by percent."""
    kind, _, percent = label.partition(":")
    order = ("hidden", "interact", "interact_req", "oracle", "full")
    rank = order.index(kind) if kind in order else len(order)
    return rank, int(percent) if percent.isdecimal() else -1, label


def has_questions(label: str) -> bool:
    """Return whether the condition has a question channel (protocol rule 2)."""
    kind = label.partition(":")[0]
    return kind in set(ConditionKind) and ConditionKind(kind).has_questions


def _plan_order(plan: Planned) -> tuple[tuple[int, int, str], str, str, int]:
    return condition_order(plan.condition), plan.system, plan.case_id, plan.repeat
