"""Whether what a run was planned with is still what is here: cases, prompt pack, scaffolds.

Ids are hashes of these. A run that went on with other material would be filed under a false name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fde_ray.cases.records import Case
from fde_ray.model.errors import CaseError, UserError
from fde_ray.model.plan import RunPlan
from fde_ray.scaffolds import scaffold

from .runtime import Runtime

_CASE_PARTS = {
    "visible": "its instruction or data",
    "information": "its information.md",
    "gt": "its gt.json",
    "scoring": "its evaluator, truth or reference",
}


def material_of(plans: Iterable[RunPlan]) -> dict[str, Any]:
    """Return the hashes of all that the plans rest upon, in the form that a sweep stores."""
    cases: dict[str, dict[str, str]] = {}
    locks: dict[str, str] = {}
    packs: dict[str, dict[str, str]] = {}
    for plan in plans:
        run, grade = plan.identity, plan.grade_identity
        if plan.case_id not in cases:
            cases[plan.case_id] = {
                "visible": run.visible_hash,
                "information": run.information_hash,
                "gt": grade.gt_hash,
                "scoring": grade.scoring_hash,
            }
        locks[plan.system.scaffold] = run.scaffold_lock
        packs[plan.prompt_pack] = {"solve": run.solve_pack, "grade": grade.grade_pack}
    return {"cases": cases, "scaffold_locks": dict(sorted(locks.items())), "prompt_packs": packs}


def change_since(plans: Iterable[RunPlan], runtime: Runtime) -> str | None:
    """Return in words what differs from the plans; None = all is as it was."""
    return change_of(material_of(plans), runtime)


def change_of(material: Mapping[str, Any], runtime: Runtime) -> str | None:
    """Return in words what differs from `material`; None = all is as it was."""
    for case_id, hashes in material.get("cases", {}).items():
        if (reason := _case_change(case_id, hashes, runtime.cases)) is not None:
            return reason
    for name, hashes in material.get("prompt_packs", {}).items():
        try:
            pack = runtime.pack(name)
        except UserError as error:
            return str(error)
        if hashes != {"solve": pack.solve_hash, "grade": pack.grade_hash}:
            return f"the prompt pack {name!r} has changed"
    for name, lock in material.get("scaffold_locks", {}).items():
        try:
            if scaffold(name).lock_hash != lock:
                return f"the scaffold {name!r} has changed"
        except UserError as error:
            return str(error)
    return None


def _case_change(case_id: str, hashes: Mapping[str, str], cases: Mapping[str, Case]) -> str | None:
    try:
        case = cases[case_id]
    except (CaseError, KeyError) as error:
        return str(error) if isinstance(error, CaseError) else f"case {case_id} is not here"
    now = {
        "visible": case.visible_hash,
        "information": case.information_hash,
        "gt": case.gt_hash,
        "scoring": case.scoring_hash,
    }
    changed = [what for part, what in _CASE_PARTS.items() if hashes.get(part) != now[part]]
    return f"case {case_id} has changed ({', '.join(changed)})" if changed else None
