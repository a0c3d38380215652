"""What a changed spec means for the runs of a sweep: reused, graded anew, run anew. Pure.

Ids are hashes of all that makes two runs, or two grades, equal; why they differ is read from what
went into them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from fde_ray.model.base import Record, canonical_json
from fde_ray.model.plan import RunPlan
from fde_ray.model.specs import System
from fde_ray.model.states import GradeState, Phase

HAS_RESULT = (GradeState.SCORED, GradeState.NO_MAJORITY)
IN_STORE = "already in the store"
NEW_CELL = "new in the spec"
GONE_CELL = "no longer in the spec"


class Kind(StrEnum):
    REUSE = "reuse"
    """The same run and the same grade."""
    REGRADE = "regrade"
    """The same run, another grade: no agent runs again."""
    RERUN = "rerun"
    """Another run in the place of one; the former one's results stay in the store."""
    ADD = "add"
    DROP = "drop"


class Change(NamedTuple):
    """One run of either spec. finished: it has the result that its spec asks for."""

    kind: Kind
    reasons: tuple[str, ...]
    case_id: str
    condition: str
    system: str
    repeat: int
    run_id: str
    grade_id: str
    finished: bool


class Comparison(NamedTuple):
    changes: tuple[Change, ...]

    @property
    def is_same(self) -> bool:
        return all(change.kind is Kind.REUSE for change in self.changes)

    def count(self, kind: Kind) -> int:
        return sum(change.kind is kind for change in self.changes)

    def groups(self) -> list[tuple[Kind, tuple[str, ...], int, int]]:
        """Return (kind, reasons, runs, how many of them have a result), the largest first."""
        runs, finished = Counter[Any](), Counter[Any]()
        for change in self.changes:
            runs[change.kind, change.reasons] += 1
            finished[change.kind, change.reasons] += change.finished
        order = list(Kind)
        keys = sorted(runs, key=lambda key: (order.index(key[0]), -runs[key], key[1]))
        return [
            (kind, reasons, runs[kind, reasons], finished[kind, reasons]) for kind, reasons in keys
        ]


Standing = tuple[Phase, GradeState]
Pair = tuple[str, str]


def compared(
    old: Sequence[RunPlan],
    new: Sequence[RunPlan],
    standings: Mapping[Pair, Standing],
    old_systems: Sequence[System] = (),
) -> Comparison:
    """Return every run of the new spec and every dropped one of the old.

    standings: of all runs of the tenant, also those that other sweeps want. old_systems: of the
    old spec; a run that is shared has the name of the sweep that came first.
    """
    return _Desk(old, standings, old_systems).compared(new)


class _Desk:
    def __init__(
        self,
        old: Sequence[RunPlan],
        standings: Mapping[Pair, Standing],
        systems: Sequence[System],
    ) -> None:
        names = {_make(system): system.name for system in systems}
        self._old, self._standings = old, standings
        self._named = [(plan, names.get(_make(plan.system), plan.system.name)) for plan in old]
        self._pairs = {(plan.run_id, plan.grade_id) for plan in old}
        self._by_run = {plan.run_id: plan for plan in old}
        self._by_cell = {_cell(plan, name): plan for plan, name in self._named}
        self._stored = {run for run, _ in standings}

    def compared(self, new: Sequence[RunPlan]) -> Comparison:
        changes = [self._change(plan) for plan in new]
        runs = {plan.run_id for plan in new}
        cells = {_cell(plan, plan.system.name) for plan in new}
        dropped = [
            self._made(Kind.DROP, (GONE_CELL,), plan, name)
            for plan, name in self._named
            if plan.run_id not in runs and _cell(plan, name) not in cells
        ]
        return Comparison((*changes, *dropped))

    def _change(self, plan: RunPlan) -> Change:
        pair, name = (plan.run_id, plan.grade_id), plan.system.name
        if pair in self._pairs:
            return self._made(Kind.REUSE, (), plan, name)
        if pair in self._standings:
            return self._made(Kind.REUSE, (IN_STORE,), plan, name)
        if (before := self._by_run.get(plan.run_id)) is not None:
            reasons = why_other_grade(before, plan)
            return self._made(Kind.REGRADE, reasons, plan, name)
        if plan.run_id in self._stored:
            return self._made(Kind.REGRADE, (IN_STORE,), plan, name)
        if (before := self._by_cell.get(_cell(plan, name))) is not None:
            return self._made(Kind.RERUN, why_other_run(before, plan), plan, name)
        return self._made(Kind.ADD, (NEW_CELL,), plan, name)

    def _made(self, kind: Kind, reasons: tuple[str, ...], plan: RunPlan, name: str) -> Change:
        standing = self._standings.get((plan.run_id, plan.grade_id))
        return Change(
            kind,
            reasons,
            plan.case_id,
            plan.condition.label,
            name,
            plan.repeat,
            plan.run_id,
            plan.grade_id,
            finished=standing is not None and standing[1] in HAS_RESULT,
        )


def why_other_run(before: RunPlan, after: RunPlan) -> tuple[str, ...]:
    """Return what changed between two runs, in the words of the spec and of case packages."""
    fields = _differing(before.identity, after.identity) - _NO_IDENTITY
    if fields & _BEHIND_PROMPT:
        fields -= {"prompt_hash"}
    return _in_words(fields)


def why_other_grade(before: RunPlan, after: RunPlan) -> tuple[str, ...]:
    """Return what changed between two grades of one run."""
    return _in_words(_differing(before.grade_identity, after.grade_identity))


_NO_IDENTITY = {"system.name", "system.channel"}
_BEHIND_PROMPT = {"visible_hash", "information_hash", "solve_pack"}
_WORDS = {
    "visible_hash": "case (instruction or data)",
    "information_hash": "information",
    "prompt_hash": "prompt",
    "scaffold_lock": "scaffold (its lock)",
    "solve_pack": "prompt_pack (solving)",
    "grade_pack": "prompt_pack (grading)",
    "scoring_hash": "evaluator, truth or reference",
    "gt_hash": "gt",
    "customer_model": "customer.model",
    "customer_temperature": "customer.temperature",
    "customer_max_tokens": "customer.max_tokens",
    "customer_failure": "customer.failure",
    "system.model": "model",
    "system.scaffold": "scaffold",
    "panel": "panel.models",
    "panel_time_s": "panel.time",
    "panel_steps": "panel.steps",
    "panel_stop": "panel.panel_stop",
    "passthrough": "panel.passthrough",
    "evaluator_exception": "panel.evaluator_exception",
}


def _in_words(fields: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(_WORDS.get(field, field) for field in fields))


def _differing(before: Record, after: Record) -> set[str]:
    one, other = _flat(before.jsonable()), _flat(after.jsonable())
    return {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}


def _flat(value: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, dict):
            found |= _flat(inner, f"{where}{key}.")
        else:
            found[where + key] = inner
    return found


def _cell(plan: RunPlan, name: str) -> tuple[str, str, str, int]:
    return plan.case_id, plan.condition.label, name, plan.repeat


def _make(system: System) -> str:
    """Return what makes two systems equal, whatever they are called."""
    value = system.jsonable()
    del value["name"]
    return canonical_json(value)
