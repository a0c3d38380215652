"""Reads a session from the run store as the one record that the plane decides from."""

from __future__ import annotations

from typing import Literal, NamedTuple

from fde_ray.model.chat import Bill
from fde_ray.model.session import SessionInputs
from fde_ray.model.states import Phase, Role, SolveEnd
from fde_ray.store.runs import AttemptRow, RunStore, Standing
from fde_ray.store.runs.vitals import Vitals

from .ports import Session

NANO_PER_DOLLAR = 10**9
CACHED = 4096


class _Facts(NamedTuple):
    """What never changes of a session."""

    inputs: SessionInputs
    bill: Bill
    budget_nanousd: int | None


class Sessions:
    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._facts: dict[str, _Facts] = {}

    async def find(self, subject: str) -> Session | None:
        """Return the session as it is now; None = there is none of this name."""
        return await self.seen(subject, await self._store.vitals_of(subject))

    async def seen(self, subject: str, vitals: Vitals | None) -> Session | None:
        """Return the session of these vitals."""
        if vitals is None:
            return None
        row, facts = vitals.standing, self._facts.get(subject)
        if facts is None:
            facts = self._remembered(await self._store.session(subject))
        # Checked when they were written; building them anew would cost a call's worth of time.
        return Session.model_construct(
            subject=subject,
            bill=facts.bill,
            inputs=facts.inputs,
            budget_nanousd=facts.budget_nanousd,
            live=row.live,
            stop=stop_of(row),
            serial=row.serial,
            nonce=row.nonce,
            started_at=row.agent_started_at,
            solve_end=row.solve_end,
            solve_ended_at=row.solve_ended_at,
            open_cause=vitals.open_cause,
            committed=row.state == "committed",
        )

    def _remembered(self, row: AttemptRow) -> _Facts:
        bill = Bill(
            run_id=row.run_id,
            subject=row.subject,
            role=Role.AGENT if row.role == "solve" else Role.EXTRACTOR,
            case_id=row.case_id,
            repeat=row.repeat,
            grade_id=row.grade_id,
        )
        dollars = row.budget_usd if row.role == "solve" else None
        budget = None if dollars is None else round(dollars * NANO_PER_DOLLAR)
        facts = _Facts(row.inputs, bill, budget)
        if len(self._facts) >= CACHED:
            self._facts.pop(next(iter(self._facts)))
        self._facts[row.subject] = facts
        return facts


def stop_of(row: Standing) -> Literal["cancelled", "superseded"] | None:
    """Return why a session that is not live was stopped; None = it ended in the ordinary way."""
    if row.live:
        return None
    if row.run_phase is Phase.CANCELLED or row.solve_end is SolveEnd.CANCELLED:
        return "cancelled"
    return "superseded" if row.role == "solve" and row.number != row.run_attempt else None
