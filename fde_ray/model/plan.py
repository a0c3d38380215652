"""One planned run of a sweep, complete: a supervisor needs this and the case package, no spec."""

from __future__ import annotations

from .base import Record
from .ids import GradeIdentity, RunIdentity
from .specs import Condition, Customer, Limits, Panel, System
from .states import Channel


class RunPlan(Record):
    run_id: str
    grade_id: str
    sweep: str
    case_id: str
    condition: Condition
    system: System
    repeat: int
    channel: Channel
    oracle_points: tuple[str, ...] | None
    prompt: str
    limits: Limits
    customer: Customer
    panel: Panel
    detectors: tuple[str, ...]
    judges: tuple[str, ...]
    prompt_pack: str
    budget_usd_per_run: float | None
    identity: RunIdentity
    grade_identity: GradeIdentity

    @property
    def image(self) -> str:
        return image_name(self.system.scaffold, self.identity.scaffold_lock)


def image_name(scaffold: str, lock: str) -> str:
    """Return how we call what a run's sandbox is started from."""
    return f"{scaffold}@{lock[:12]}"
