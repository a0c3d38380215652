"""The documented JSON object of a report: what `demo --json` and `report --json` print."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from pydantic import Field

from fde_ray.model.base import Record
from fde_ray.model.result import RunResult

from . import aggregates
from .aggregates import Effort, PointTypes, RoleCost, Total
from .cells import Cell, Planned, Status, condition_order, joined
from .measures import Measure, Resampling


class GroupMetrics(Record):
    """All numbers of one system under one condition, in the order of the paper's tables."""

    quality: Measure
    quality_capped: Measure
    dsr: Measure
    pass_at_k: Measure
    pass_hat_k: Measure
    recall: Measure
    precision: Measure
    ask_f1: Measure
    kqc1: Measure
    atc: Measure
    redundant: Measure
    recall_by_issue_type: dict[str, Measure]
    recall_by_content_domain: dict[str, Measure]


class RunCell(Record):
    """One planned run in the per-case grid."""

    run_id: str
    repeat: int
    status: Status
    score: float | None
    valid: bool | None
    recall: float | None
    reason: str = ""
    """Why there is no score."""
    zero_signature: str | None = None


class CaseCell(Record):
    """One case of a group. `quality` None = a repeat has no score."""

    case_id: str
    title: str
    quality: float | None
    runs: tuple[RunCell, ...]


class GroupSummary(Record):
    """One system under one condition."""

    condition: str
    system: str
    scaffold: str | None
    """None = no result names it yet."""
    model: str | None
    repeats: int | None
    """The k of pass@k; None = cases have different numbers of planned repeats."""
    planned: int
    scored: int
    statuses: dict[str, int]
    metrics: GroupMetrics
    zero_signatures: dict[str, int]
    effort: Effort
    cost: tuple[RoleCost, ...]
    offline: tuple[str, ...]
    cases: tuple[CaseCell, ...]


class SweepSummary(Record):
    """The report as one object. Systems are sorted by name, conditions from least to most known."""

    schema_: Literal["fde_ray.summary/1"] = Field(alias="schema", default="fde_ray.summary/1")
    sweeps: tuple[str, ...]
    offline: tuple[str, ...]
    """Roles that the offline provider answered somewhere: smoke and regression, no model result."""
    unsafe_sandbox: bool
    complete_cases: bool
    resampling: Resampling
    planned: int
    scored: int
    statuses: dict[str, int]
    unplanned_results: int
    """Results whose run is not in the plan; they are left out."""
    groups: tuple[GroupSummary, ...]
    cost: tuple[RoleCost, ...]
    """Each run once, even when two systems share it."""
    cost_nanousd: Total
    ledger_nanousd: Total | None
    """Of all model calls of the sweep so far, whether or not a result tells of them; None = no
    ledger was at hand."""
    deviations: tuple[str, ...]
    program_versions: tuple[str, ...]
    protocol_versions: tuple[str, ...]


def summary(
    results: Iterable[RunResult],
    planned: Sequence[Planned],
    *,
    complete_cases: bool = False,
    resampling: Resampling | None = None,
    ledger_nanousd: Total | None = None,
) -> SweepSummary:
    """Return the summary of the planned runs; equal inputs in any order give an equal object.

    ledger_nanousd: what the ledger says that all calls cost, where there is one.
    """
    results = list(results)
    cells = joined(results, planned)
    taking_part = _distinct(cells)
    cost = aggregates.costs(taking_part)
    run_ids = {c.planned.run_id for c in cells}
    return SweepSummary(
        sweeps=tuple(sorted({p.sweep for p in planned})),
        offline=tuple(sorted({role for r in taking_part for role in r.offline})),
        unsafe_sandbox=any(r.unsafe_sandbox for r in taking_part),
        complete_cases=complete_cases,
        resampling=resampling or Resampling(),
        planned=len(cells),
        scored=sum(c.status is Status.SCORED for c in cells),
        statuses=aggregates.statuses(cells),
        unplanned_results=len({r.run_id for r in results} - run_ids),
        groups=_groups(cells, complete_cases, resampling or Resampling()),
        cost=cost,
        cost_nanousd=_all_roles(cost),
        ledger_nanousd=ledger_nanousd,
        deviations=tuple(sorted({key for r in taking_part for key in r.deviations})),
        program_versions=tuple(sorted({r.versions.fde_ray for r in taking_part})),
        protocol_versions=tuple(sorted({r.versions.protocol for r in taking_part})),
    )


def summary_json(value: SweepSummary) -> str:
    """Return the object as indented ASCII JSON, floats in their shortest exact spelling."""
    text = json.dumps(value.jsonable(), indent=2, ensure_ascii=True, allow_nan=False)
    return text.replace("\x7f", "\\u007f") + "\n"


def _distinct(cells: Iterable[Cell]) -> list[RunResult]:
    found = {c.planned.run_id: c.result for c in cells if c.result is not None}
    return [found[run_id] for run_id in sorted(found)]


def _all_roles(cost: Iterable[RoleCost]) -> Total:
    cost = list(cost)
    unknown = sum(c.cost_nanousd.unknown for c in cost)
    known = sum(c.cost_nanousd.known for c in cost)
    return Total(value=None if unknown else known, known=known, unknown=unknown)


def _groups(
    cells: Sequence[Cell], complete_cases: bool, resampling: Resampling
) -> tuple[GroupSummary, ...]:
    keys = sorted(
        {(c.planned.condition, c.planned.system) for c in cells},
        key=lambda key: (condition_order(key[0]), key[1]),
    )
    results = _distinct(cells)
    shared = _Shared(
        aggregates.point_types(results, "issue_type"),
        aggregates.point_types(results, "content_domain"),
        complete_cases,
        resampling,
    )
    return tuple(
        _group([c for c in cells if (c.planned.condition, c.planned.system) == key], shared)
        for key in keys
    )


class _Shared(NamedTuple):
    """What the groups of one summary have in common."""

    issue_types: PointTypes
    content_domains: PointTypes
    complete_cases: bool
    resampling: Resampling


def _metrics(cells: Sequence[Cell], shared: _Shared) -> GroupMetrics:
    how, complete = shared.resampling, shared.complete_cases
    clarification = {
        name: aggregates.clarification(cells, name, how) for name in aggregates.CLARIFICATION
    }
    return GroupMetrics(
        quality=aggregates.quality(cells, capped=False, complete_cases=complete, resampling=how),
        quality_capped=aggregates.quality(
            cells, capped=True, complete_cases=complete, resampling=how
        ),
        dsr=aggregates.success_rate(cells, how),
        pass_at_k=aggregates.pass_rate(cells, "any", how),
        pass_hat_k=aggregates.pass_rate(cells, "all", how),
        recall=clarification["recall"],
        precision=clarification["precision"],
        ask_f1=clarification["ask_f1"],
        kqc1=clarification["kqc1"],
        atc=clarification["atc"],
        redundant=clarification["redundant"],
        recall_by_issue_type=aggregates.typed_recall(cells, "issue_type", shared.issue_types, how),
        recall_by_content_domain=aggregates.typed_recall(
            cells, "content_domain", shared.content_domains, how
        ),
    )


def _group(cells: Sequence[Cell], shared: _Shared) -> GroupSummary:
    results = [c.result for c in cells if c.result is not None]
    cases = aggregates.by_case(cells)
    repeats = {len(runs) for runs in cases.values()}
    return GroupSummary(
        condition=cells[0].planned.condition,
        system=cells[0].planned.system,
        scaffold=min((r.scaffold for r in results), default=None),
        model=min((r.model for r in results), default=None),
        repeats=repeats.pop() if len(repeats) == 1 else None,
        planned=len(cells),
        scored=sum(c.status is Status.SCORED for c in cells),
        statuses=aggregates.statuses(cells),
        metrics=_metrics(cells, shared),
        zero_signatures=aggregates.zero_signatures(cells),
        effort=aggregates.effort(cells),
        cost=aggregates.costs(results),
        offline=tuple(sorted({role for r in results for role in r.offline})),
        cases=tuple(_case(case, runs) for case, runs in cases.items()),
    )


def _case(case_id: str, cells: Sequence[Cell]) -> CaseCell:
    titles = [c.result.case_title for c in cells if c.result is not None]
    return CaseCell(
        case_id=case_id,
        title=min(titles, default=""),
        quality=aggregates.case_quality(cells),
        runs=tuple(_run(c) for c in cells),
    )


def _run(cell: Cell) -> RunCell:
    measured = cell.measured
    return RunCell(
        run_id=cell.planned.run_id,
        repeat=cell.planned.repeat,
        status=cell.status,
        score=cell.score,
        valid=cell.valid,
        recall=measured.metrics.recall.value if measured and measured.metrics else None,
        reason=cell.reason,
        zero_signature=cell.result.zero_signature if cell.result else None,
    )
