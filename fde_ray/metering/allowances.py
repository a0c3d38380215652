"""Budgets that many replicas share: each holds a chunk, and pays calls out of it in memory.

A chunk is drawn, told of and given back in one update a second at most, whatever the number of
calls. What is spent and what all hold together never passes the limit, so that calls reserved at
their upper bound never do either. `purses` has the sums, `shares` says which budgets bind a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from fde_ray.model.chat import Bill
from fde_ray.model.clock import Clock
from fde_ray.model.errors import Refusal, StoreError
from fde_ray.model.failures import Fault
from fde_ray.model.states import PauseCause

from .places import UNSAID_S, Wait, Waiting
from .purses import DRAW_EVERY_S, Purse, Share
from .shares import BudgetPolicy, Limited, Owner, ShareStore, limits_of

POLICY_S = 15.0
"""Between two looks at whether sweeps have budgets of their own."""
OWNERS_S = 60.0
"""Between two looks at which sweeps want a run."""
MAX_RUNS = 20_000


class Allowances:
    """Of one replica. Costs a look at the clock where no budget is set."""

    def __init__(self, store: ShareStore, clock: Clock, policy: BudgetPolicy | None = None) -> None:
        self._store, self._clock, self._policy = store, clock, policy or BudgetPolicy()
        self._purses: dict[str, Purse] = {}
        self._drawers: dict[str, asyncio.Task[None]] = {}
        self._kicks: dict[str, asyncio.Event] = {}
        self._owners: dict[tuple[str, str | None], tuple[float, list[Owner]]] = {}
        self._sweeps_have = False
        self._looked_at = float("-inf")
        self._is_closed = False

    @property
    def ignores_unpriced(self) -> bool:
        return self._policy.ignores_unpriced

    async def binding(self, bill: Bill) -> tuple[Limited, ...]:
        """Return the shared budgets that bind a call."""
        now = self._clock.now()
        if now - self._looked_at >= POLICY_S:
            self._sweeps_have = await self._store.has_sweep_budgets()
            self._looked_at = now
        if not self._sweeps_have and not self._policy.is_set:
            return ()
        owners: Sequence[Owner] = ()
        if self._sweeps_have or self._policy.sweep is not None or self._policy.users:
            owners = await self._owners_of(bill, now)
        return limits_of(self._policy, owners, now)

    @asynccontextmanager
    async def held(
        self, limits: Sequence[Limited], amount: int, waiting: Waiting
    ) -> AsyncIterator[list[Share]]:
        """Hold `amount` of each budget inside the block; what was not settled is freed at its end.

        `waiting` hears of a wait for what others hold. Refusal 402 when the spent part forbids it.
        """
        shares: list[Share] = []
        try:
            for limited in limits:  # in one order for all, so that nobody waits in a ring
                purse = self._purse(limited)
                if not purse.take(amount, self._clock.now()):
                    await self._patiently(purse.taken(amount), waiting)
                shares.append(Share(purse, amount))
            yield shares
        finally:
            for share in shares:
                share.settle(0)

    async def aclose(self) -> None:
        """Tell what was spent, and give all chunks back."""
        self._is_closed = True
        drawers = list(self._drawers.values())
        for drawer in drawers:
            drawer.cancel()
        await asyncio.gather(*drawers, return_exceptions=True)
        for owner, purse in self._purses.items():
            purse.fail(StoreError("this process ends"))
            if purse.is_known:
                with suppress(StoreError):
                    await self._store.draw(
                        owner,
                        purse.limit,
                        spent=purse.spent,
                        target=purse.reserved,
                        least=0,
                        keep=purse.reserved,
                        is_known=True,
                    )
        self._purses.clear()

    async def _owners_of(self, bill: Bill, now: float) -> list[Owner]:
        key = (bill.run_id, bill.grade_id)
        known = self._owners.get(key)
        if known is None or now - known[0] >= OWNERS_S:
            if len(self._owners) >= MAX_RUNS:
                self._owners.clear()
            known = self._owners[key] = now, await self._store.owners_of(*key)
        return known[1]

    def _purse(self, limited: Limited) -> Purse:
        purse = self._purses.get(limited.owner)
        if purse is None:
            kick = asyncio.Event()
            purse = Purse(limited.limit, kick.set)
            self._purses[limited.owner], self._kicks[limited.owner] = purse, kick
        purse.limit = limited.limit
        if limited.owner not in self._drawers and not self._is_closed:
            work = self._draw(limited.owner, purse, self._kicks[limited.owner])
            self._drawers[limited.owner] = asyncio.create_task(work, name=limited.owner)
        return purse

    async def _patiently(self, taken: Coroutine[Any, Any, None], waiting: Waiting) -> None:
        since, task = self._clock.now(), asyncio.ensure_future(taken)
        told = False
        try:
            done, _ = await asyncio.wait([task], timeout=UNSAID_S)
            if not done:
                told = True
                await waiting(Wait(PauseCause.BUDGET_WAIT, since))
            await task
        except BaseException:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        finally:
            if told:
                await waiting(None)

    async def _draw(self, owner: str, purse: Purse, kick: asyncio.Event) -> None:
        """Draw when there is need, and once a second while anything is held; end when idle."""
        try:
            await kick.wait()  # nothing is held yet: whoever is first to want some says how much
            while True:
                kick.clear()
                await self._draw_once(owner, purse)
                await self._clock.sleep(DRAW_EVERY_S)
                if purse.is_idle and not kick.is_set():
                    return
        finally:
            self._drawers.pop(owner, None)

    async def _draw_once(self, owner: str, purse: Purse) -> None:
        (target, least), keep = purse.aims(), purse.reserved
        now = self._clock.now()
        if not purse.is_worth_telling(target, now):
            return
        spent = purse.give_back(target)
        try:
            drawn = await self._store.draw(
                owner,
                purse.limit,
                spent=spent,
                target=target,
                least=least,
                keep=keep,
                is_known=purse.is_known,
            )
        except StoreError as error:
            purse.fail(error)
            return
        purse.learn(drawn, spent, now)
        if drawn.unpriced and not self._policy.ignores_unpriced:
            purse.refuse(_unpriced(owner), above=-1)
        elif not drawn.is_lost:
            purse.refuse(_exhausted(owner), above=purse.limit - drawn.spent)


def _exhausted(owner: str) -> Refusal:
    reason = f"the budget of {owner.replace(':', ' ', 1)} does not cover this call"
    return Refusal(402, Fault.BUDGET, reason, code="budget_exhausted")


def _unpriced(owner: str) -> Refusal:
    reason = f"{owner.replace(':', ' ', 1)} has a budget and a call of it has no known cost"
    return Refusal(402, Fault.BUDGET, reason, code="unpriced")
