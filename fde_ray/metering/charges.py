"""What budgets pay for a call that has ended. Pure."""

from __future__ import annotations

from typing import Literal

from .calls import CallOutcome

CallState = Literal["started", "finished", "failed", "ambiguous"]

STATES: dict[CallOutcome, CallState] = {
    "ok": "finished",
    "unavailable": "failed",
    "rejected": "failed",
    "ambiguous": "ambiguous",
}


def charge_of(state: CallState, cost: int | None, reserved: int | None) -> int | None:
    """Return what budgets pay for a call that has ended; None = nobody knows.

    A call of which nobody knows what the provider made of it keeps its whole reserve.
    """
    if state == "failed":
        return cost or 0
    if state == "ambiguous" and reserved is not None:
        return max(cost or 0, reserved)
    return reserved if cost is None else cost
