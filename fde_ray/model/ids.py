"""Names of runs and grades: hashes of the science, never of the place (architecture §5)."""

from __future__ import annotations

from typing import NewType

from .base import Record, digest
from .specs import Condition, Limits, System
from .states import Channel

RunId = NewType("RunId", str)
GradeId = NewType("GradeId", str)

ID_LENGTH = 32
SHARDS = 256
CONTROLLER_SHARD = SHARDS
"""The lease on this one says who admits runs; no run has it."""
PROTOCOL_VERSION = "fde-bench/1"


class RunIdentity(Record):
    """All that makes two solving runs equal."""

    case_id: str
    visible_hash: str
    prompt_hash: str
    """SHA-256 of the rendered prompt; it holds condition, information or oracle answers."""
    condition: Condition
    system: System
    scaffold_lock: str
    channel: Channel
    solve_pack: str
    information_hash: str
    customer_model: str
    customer_temperature: float | None
    customer_max_tokens: int
    customer_failure: str
    detectors: tuple[str, ...]
    limits: Limits
    budget_usd_per_run: float | None
    protocol_version: str = PROTOCOL_VERSION
    repeat: int
    series: str = ""


class GradeIdentity(Record):
    """All that makes two grades of one run equal."""

    scoring_hash: str
    gt_hash: str
    information_hash: str
    grade_pack: str
    panel: tuple[str, ...]
    panel_time_s: float
    panel_steps: int
    judges: tuple[str, ...]
    passthrough: bool
    panel_stop: str
    evaluator_exception: str
    protocol_version: str = PROTOCOL_VERSION


def run_id(identity: RunIdentity) -> RunId:
    """Return 32 hex digits. The display name of a system is not science and stays outside."""
    value = identity.jsonable()
    del value["system"]["name"], value["system"]["channel"]
    return RunId(digest({"kind": "run", **value})[:ID_LENGTH])


def grade_id(identity: GradeIdentity) -> GradeId:
    return GradeId(digest({"kind": "grade", **identity.jsonable()})[:ID_LENGTH])


def attempt_id(run: RunId, attempt: int) -> str:
    return f"{run}.{attempt}"


def shard_of(run: RunId) -> int:
    """Return the run's fixed virtual shard, 0..255 (architecture §2)."""
    return int(run[:2], 16) % SHARDS
