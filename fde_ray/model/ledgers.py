"""One row of the ledger as it stands in files and reports: a try of a call, and what it cost."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from .base import Record
from .chat import Usage

CallState = Literal["started", "finished", "failed", "ambiguous"]

LATEST = 253_402_300_799.0
"""The end of the year 9999; what is later has no date."""


class LedgerLine(Record):
    """What a reader of the ledger needs of a row; what else a row holds is passed over.

    `failed`: the provider did no work, nothing is owed. `ambiguous`: it may have.
    """

    model_config = ConfigDict(extra="ignore")

    call_id: str = Field(min_length=1, max_length=500)
    try_no: int = Field(ge=1)
    subject: str = Field(min_length=1, max_length=500)
    run_id: str = Field(min_length=1, max_length=200)
    grade_id: str | None = None
    role: str = Field(min_length=1, max_length=100)
    model: str = Field(max_length=500)
    price_hash: str = ""
    started_at: float = Field(ge=0, le=LATEST)
    finished_at: float | None = Field(default=None, ge=0, le=LATEST)
    state: CallState
    status: int | None = None
    detail: str | None = None
    usage: Usage | None = None
    cost_nanousd: int | None = Field(default=None, ge=0)
    """None = unknown, with the reason beside it."""
    cost_reason: str | None = None
    model_asked: str | None = None
    """Another name that an agent said; the run's model was called instead."""
    model_returned: str | None = None
    shrunk_to: int | None = None
    """The most output that it might have, where its run's budget made that less."""
    finish_reason: str | None = None
    """Why its reply ended, in the words of its dialect; None = not answered, or not kept."""
    offline: bool = False
    raw_usage: dict[str, Any] | None = None
    """As the provider sent it."""

    @property
    def key(self) -> tuple[str, int]:
        return self.call_id, self.try_no

    @property
    def place(self) -> tuple[float, str, int]:
        """Sorts the lines of a ledger, whoever wrote them down."""
        return self.started_at, self.call_id, self.try_no

    @property
    def is_owed(self) -> bool:
        """Whether the provider may charge for it."""
        return self.state in ("finished", "ambiguous")
