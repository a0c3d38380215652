"""Rows of the ledger as values: what is written at the start and at the end of a try."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic_core import to_json

from fde_ray.metering.calls import CallFinish, CallStart
from fde_ray.metering.charges import STATES, CallState
from fde_ray.model.chat import Usage
from fde_ray.model.clock import utc
from fde_ray.model.errors import shortened
from fde_ray.store.errors import RowMissing

from . import schema
from .budgets import owners_in, owners_text, run_owner
from .database import Transaction, finding_all, keeping_all, updating_all

Key = tuple[str, int]
"""(call_id, try_no)."""
_KEYS = ("call_id", "try_no")
INSERT = keeping_all(
    schema.ledger,
    *_KEYS,
    "subject",
    "run_id",
    "grade_id",
    "role",
    "model",
    "request_hash",
    "price_hash",
    "started_at",
    "state",
    "offline",
    "day",
    "replica",
    "model_asked",
    "reserved_nanousd",
    "owners",
    "shrunk_to",
)
TOKENS = (
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "cache_write_5m_tokens",
    "cache_write_1h_tokens",
    "reasoning_tokens",
)
"""Columns of a row, fields of its usage."""
COMPLETE = updating_all(
    schema.ledger,
    _KEYS,
    (
        "state",
        "finished_at",
        "status",
        "detail",
        "usage",
        *TOKENS,
        "usage_source",
        "cost_nanousd",
        "cost_reason",
        "model_returned",
        "offline",
        "raw_usage",
        "finish_reason",
    ),
    "ledger.state IN ('started', 'ambiguous')",
)
_STANDING = (
    "call_id",
    "try_no",
    "subject",
    "state",
    "replica",
    "cost_nanousd",
    "reserved_nanousd",
    "owners",
)
_LOOK = finding_all(schema.ledger, _KEYS, _STANDING)
_HOLD = finding_all(schema.ledger, _KEYS, _STANDING, locked=True)
REPLY = keeping_all(schema.replies, "call_id", "subject", "reply")


class Start(NamedTuple):
    """A try that is about to go out."""

    row: CallStart

    @property
    def key(self) -> Key:
        return self.row.call_id, self.row.try_no

    @property
    def owners(self) -> tuple[str, ...]:
        own = () if self.row.budget_nanousd is None else (run_owner(self.row.bill.run_id),)
        return own + self.row.owners

    @property
    def is_bound(self) -> bool:
        """Whether its run has a budget."""
        return self.row.budget_nanousd is not None


class Finish(NamedTuple):
    """What became of one."""

    row: CallFinish

    @property
    def key(self) -> Key:
        return self.row.call_id, self.row.try_no


class Standing(NamedTuple):
    """What its row says."""

    subject: str
    state: CallState
    replica: str | None
    cost: int | None
    reserved: int | None
    owners: str | None

    @property
    def run_owner(self) -> str | None:
        return next((one for one in owners_in(self.owners) if one.startswith("run:")), None)


class Unsent(NamedTuple):
    """A start that may or may not have been written, and was given up: the call never went out."""

    row: CallFinish

    @property
    def key(self) -> Key:
        return self.row.call_id, self.row.try_no


Item = Start | Finish | Unsent


def unsent(row: CallStart) -> Unsent:
    """Return the end of a start that was given up."""
    return Unsent(
        CallFinish(
            call_id=row.call_id,
            try_no=row.try_no,
            finished_at=row.started_at,
            outcome="unavailable",
            usage=Usage(prompt_tokens=0, completion_tokens=0, source="provider"),
            cost_nanousd=0,
            cost_reason="never sent",
            detail="the ledger could not be written; the call was not sent",
            is_held=row.reserved_nanousd is not None,
        )
    )


def key_of(item: Item) -> Key:
    return item.key


def missing(key: Key) -> RowMissing:
    return RowMissing(f"there is no try {key[1]} of call {key[0][:128]}")


def standing(t: Transaction, keys: Sequence[Key], *, is_locked: bool = True) -> dict[Key, Standing]:
    """Return what the rows say that are there; nobody else changes them until the transaction
    ends, if they are locked."""
    named = [{"call_id": call_id, "try_no": try_no} for call_id, try_no in sorted(set(keys))]
    rows = t.find_all(_HOLD if is_locked else _LOOK, named)
    return {(row[0], row[1]): Standing(*row[2:]) for row in rows}


def start_values(start: Start, boot: str) -> dict[str, Any]:
    row, bill = start.row, start.row.bill
    return {
        "call_id": row.call_id,
        "try_no": row.try_no,
        "subject": bill.subject,
        "run_id": bill.run_id,
        "grade_id": bill.grade_id,
        "role": bill.role.value,
        "model": row.model,
        "request_hash": row.request_sha256,
        "price_hash": row.price_hash,
        "started_at": row.started_at,
        "state": "started",
        "offline": 0,
        "day": day_of(row.started_at),
        "replica": boot,
        "model_asked": row.model_asked,
        "reserved_nanousd": row.reserved_nanousd,
        "owners": owners_text(start.owners),
        "shrunk_to": row.shrunk_to,
    }


def finish_values(row: CallFinish) -> dict[str, Any]:
    usage = row.usage
    return {
        "call_id": row.call_id,
        "try_no": row.try_no,
        "state": STATES[row.outcome],
        "finished_at": row.finished_at,
        "status": row.status,
        "detail": shortened(row.detail) or None,
        "usage": usage.model_dump_json(),
        **{name: getattr(usage, name) for name in TOKENS},
        "usage_source": usage.source,
        "cost_nanousd": row.cost_nanousd,
        "cost_reason": row.cost_reason or None,
        "model_returned": shortened(row.model_returned, 200) or None,
        "offline": int(usage.source == "offline"),
        "raw_usage": None if row.raw_usage is None else json_text(row.raw_usage),
        "finish_reason": None if row.reply is None else shortened(row.reply.finish_reason, 40),
    }


def json_text(value: Any) -> str:
    """Return JSON; a number that no float holds has none, and becomes null."""
    return to_json(value, inf_nan_mode="null").decode()


def day_of(at: float) -> str:
    """Return the day, UTC, that a call belongs to."""
    return utc(at)[:10]
