"""What the plane needs from the rooms around it, and the one record that it decides from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal, Protocol

from fde_ray.metering.places import Waiting
from fde_ray.model.base import Record
from fde_ray.model.chat import Bill, ChatReply
from fde_ray.model.session import SessionInputs
from fde_ray.model.states import PauseCause, SolveEnd
from fde_ray.model.wire import WireRequest


class Session(Record):
    """One shim's session as the store has it."""

    subject: str
    bill: Bill
    inputs: SessionInputs
    budget_nanousd: int | None = None
    live: bool
    """The run's live attempt, or a grading try that is open."""
    stop: Literal["cancelled", "superseded"] | None = None
    """Why it is not live; None = it is over in the ordinary way."""
    serial: int = 0
    """Of the tokens that are good; 0 = no shim has started the agent, and every one is."""
    nonce: str | None = None
    """What tells the shim of that serial from others."""
    started_at: float | None = None
    solve_end: SolveEnd | None = None
    solve_ended_at: float | None = None
    open_cause: PauseCause | None = None
    """Why the agent's clock stands still; None = it does not."""
    committed: bool = False
    """The final commit is in."""

    @property
    def is_solving(self) -> bool:
        return self.live and self.solve_end is None and not self.committed


class Calls(Protocol):
    """`metering.ledger.MeteredChat` fits."""

    async def complete(
        self,
        request: WireRequest,
        bill: Bill,
        call_id: str,
        *,
        retries: int = 0,
        budget_nanousd: int | None = None,
        waiting: Waiting | None = None,
    ) -> ChatReply: ...

    def stream(
        self,
        request: WireRequest,
        bill: Bill,
        call_id: str,
        *,
        retries: int = 0,
        budget_nanousd: int | None = None,
        waiting: Waiting | None = None,
    ) -> AsyncIterator[bytes | ChatReply]: ...

    def counts(self, request: WireRequest) -> bool: ...


class EvaluateReply(Record):
    """What the evaluator said of one output folder of an extractor."""

    exit_code: int
    stdout: str
    stderr: str
    first: bool
    """This is the first scored reply of the try; its output hash was kept."""


Evaluate = Callable[[str, bytes], Awaitable[EvaluateReply]]
"""(subject, tar.gz of the output folder) -> reply."""
