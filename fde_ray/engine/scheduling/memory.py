"""What the scheduler keeps in the store between two looks, whoever takes them."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from .rates import Rate


class Memory(NamedTuple):
    rate: Rate | None
    """None = starts are not bounded."""
    caps: dict[str, int]
    """Most runs of a model, where its provider was found to be slow."""
    measured_at: float


class _Stored(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    per_s: float | None = None
    tokens: float = 0.0
    at: float = 0.0
    halved_at: float | None = None
    caps: dict[str, int] = {}
    measured_at: float = 0.0


def remembered(memory: Memory) -> dict[str, Any]:
    """Return JSON for the store."""
    rate = {} if memory.rate is None else memory.rate._asdict()
    return {**rate, "caps": memory.caps, "measured_at": memory.measured_at}


def recalled(stored: dict[str, Any], fresh: Memory) -> Memory:
    """Return what was kept; `fresh` where nothing usable was.

    The operator may have taken the bucket away or put one there meanwhile.
    """
    try:
        found = _Stored.model_validate(stored)
    except ValidationError:
        return fresh
    rate = fresh.rate
    if rate is not None and found.per_s is not None:
        per_s = min(rate.per_s, found.per_s)
        rate = Rate(per_s, found.tokens, min(found.at, rate.at), found.halved_at)
    return Memory(rate, found.caps, found.measured_at)
