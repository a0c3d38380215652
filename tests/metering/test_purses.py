"""Chunks of a shared budget at any interleaving: what is spent and held never passes the limit."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fde_ray.metering.purses import STALE_S, Purse, Share, _Waiter
from fde_ray.metering.shares import BudgetPolicy, Drawn, Limited, Owner, limits_of
from fde_ray.store.runs.budgets import Counter, drawn_from
from fde_ray.store.runs.replicas import TTL_S

LIMIT = 1000


class Row:
    """The shared row and the chunks beside it, as the store has them."""

    def __init__(self) -> None:
        self.counter = Counter(0, 0, 0)
        self.chunks: dict[int, tuple[int, int]] = {}
        self.alive_until: dict[int, float] = {}

    def draw(
        self, boot: int, now: float, spent: int, target: int, least: int, kept: int, known: bool
    ) -> Any:
        chunk = self.chunks.get(boot)
        if chunk is None and known:
            return Drawn(0, *self.counter, is_lost=True)
        self.alive_until[boot] = now + TTL_S
        held, told = chunk or (0, 0)
        self.counter, left = drawn_from(
            self.counter, held, spent - told, LIMIT, target, least, kept
        )
        self.chunks[boot] = left, spent
        return Drawn(left, *self.counter)

    def reap(self, boot: int, paid: int) -> None:
        held, told = self.chunks.pop(boot)
        self.counter = Counter(
            self.counter.spent + paid - told, self.counter.reserved - held, self.counter.unpriced
        )


class Replica:
    def __init__(self, number: int) -> None:
        self.number = number
        self.purse = Purse(LIMIT, lambda: None)
        self.calls: list[tuple[Share, int, int]] = []
        self.paid: dict[int, int] = {}
        """What the ledger says that calls of each boot cost, ended or not."""
        self.boot = 0
        self.waiters: list[_Waiter] = []
        self.sent: tuple[int, int, int, int, bool, float] | None = None
        self.reply: tuple[Drawn, int, float] | None = None


class Interleavings(RuleBasedStateMachine):
    """Replicas take, settle, and exchange messages with the row in any order; some die, some are
    taken for dead and go on."""

    def __init__(self) -> None:
        super().__init__()
        self.row, self.now, self.settled = Row(), 0.0, 0
        self.replicas = [Replica(n) for n in range(2)]

    number = st.integers(0, 1)

    @rule(n=number, amount=st.sampled_from([1, 150, 400, LIMIT]))
    def take(self, n: int, amount: int) -> None:
        one = self.replicas[n]
        if one.purse.take(amount, self.now):
            one.calls.append((Share(one.purse, amount), amount, one.boot))
            self.row_pays(one, one.boot, amount)

    @rule(n=number, part=st.sampled_from([0.0, 0.5, 1.0, 1.0]))
    def settle(self, n: int, part: float) -> None:
        one = self.replicas[n]
        if one.calls:
            share, amount, boot = one.calls.pop(0)
            cost = int(amount * part)
            share.settle(cost)
            self.settled += cost
            self.row_pays(one, boot, cost - amount)
            self.begin_served(one)

    @rule(n=number, amount=st.sampled_from([150, 400]))
    def queue(self, n: int, amount: int) -> None:
        one = self.replicas[n]
        waiter = _Waiter(amount, Future())  # type: ignore[arg-type]
        one.waiters.append(waiter)
        one.purse.waiters.append(waiter)

    def begin_served(self, one: Replica) -> None:
        for waiter in [w for w in one.waiters if w.future.done()]:
            one.waiters.remove(waiter)
            one.calls.append((Share(one.purse, waiter.amount), waiter.amount, one.boot))
            self.row_pays(one, one.boot, waiter.amount)

    @rule(n=number, more=st.sampled_from([0, 300, LIMIT]))
    def draw(self, n: int, more: int) -> None:
        self.hear(n)
        self.ask(n, more)
        self.arrive(n)
        self.hear(n)

    @rule(n=number)
    def spend(self, n: int) -> None:
        """All that can be had."""
        self.draw(n, LIMIT)
        self.take(n, max(1, self.replicas[n].purse.free))
        while self.replicas[n].calls:
            self.settle(n, 1.0)

    @rule(n=number, early=st.booleans())
    def take_while_giving_back(self, n: int, early: bool) -> None:
        self.hear(n)
        self.ask(n, 0)
        for step in (self.take_all, self.arrive) if early else (self.arrive, self.take_all):
            step(n)
        self.hear(n)

    @rule(n=number)
    def take_all(self, n: int) -> None:
        self.take(n, max(1, self.replicas[n].purse.free))

    @rule(n=number, more=st.sampled_from([0, 300, LIMIT]))
    def ask(self, n: int, more: int) -> None:
        one = self.replicas[n]
        if one.sent is None and one.reply is None:
            (target, least), kept = one.purse.aims(), one.purse.reserved
            target += more
            spent = one.purse.give_back(target)
            one.sent = (spent, target, least, kept, one.purse.is_known, self.now)

    @rule(n=number)
    def arrive(self, n: int) -> None:
        one = self.replicas[n]
        if one.sent is not None:
            spent, target, least, kept, known, at = one.sent
            drawn = self.row.draw(n, self.now, spent, target, least, kept, known)
            one.sent, one.reply = None, (drawn, spent, at)

    @rule(n=number)
    def hear(self, n: int) -> None:
        one = self.replicas[n]
        if one.reply is not None:
            drawn, spent, at = one.reply
            one.purse.learn(drawn, spent, at)
            if drawn.is_lost:
                one.boot += 1
            one.reply = None
            self.begin_served(one)

    @rule(n=number)
    def lose_the_reply(self, n: int) -> None:
        """The store was away: nobody knows whether it took the news."""
        self.replicas[n].reply = None

    @rule(seconds=st.sampled_from([1.0, STALE_S, TTL_S, TTL_S]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(n=number)
    def expire(self, n: int) -> None:
        """Its lease has run out: what it paid is counted from the ledger."""
        one = self.replicas[n]
        if n in self.row.chunks and self.row.alive_until[n] <= self.now:
            self.row.reap(n, one.paid.pop(one.boot, 0))

    @rule(n=number)
    def sleep_through_the_lease(self, n: int) -> None:
        self.draw(n, LIMIT)
        self.now += TTL_S
        self.expire(n)
        self.spend(1 - n)
        self.take_all(n)
        if self.replicas[n].calls:
            self.settle(n, 1.0)

    @precondition(lambda self: any(one.calls for one in self.replicas))
    @rule(n=number)
    def die(self, n: int) -> None:
        """A new process takes its place; the calls that were under way stay without an end."""
        one = self.replicas[n]
        if n in self.row.chunks:
            self.row.reap(n, one.paid.pop(one.boot, 0))
        self.replicas[n] = Replica(n)
        self.replicas[n].boot = one.boot + 1

    def row_pays(self, one: Replica, boot: int, amount: int) -> None:
        one.paid[boot] = one.paid.get(boot, 0) + amount

    @invariant()
    def limit_is_kept(self) -> None:
        assert self.settled <= LIMIT
        assert self.row.counter.spent + self.row.counter.reserved <= LIMIT
        assert self.row.counter.reserved == sum(held for held, _ in self.row.chunks.values())


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)


def test_nobody_waits_for_what_another_one_holds_for_nothing() -> None:
    play = Interleavings()
    play.row.counter = Counter(700, 200, 0)
    for n, spent in ((0, 400), (1, 300)):
        play.row.chunks[n] = 100, spent
        play.replicas[n].purse.spent = spent
        play.replicas[n].purse.learn(Drawn(100, 700, 200, 0), spent, play.now)
    play.queue(0, 250)
    play.queue(1, 250)
    for _ in range(4):
        for n in (0, 1):
            play.draw(n, 0)
            while play.replicas[n].calls:
                play.settle(n, 0.1)
    assert not play.replicas[0].waiters
    assert not play.replicas[1].waiters


def test_chunk_grows_with_use_and_leaves_others_their_part() -> None:
    purse = Purse(LIMIT, lambda: None)
    purse.learn(Drawn(100, 0, 100, 0), 0, 0.0)
    assert purse.take(100, 0.0)
    purse.learn(Drawn(100, 0, 100, 0), 0, 1.0)
    target, least = purse.aims()
    assert (target, least) == (100 + 225, 100)


def test_nothing_is_paid_out_of_a_chunk_that_was_not_told_of_for_long() -> None:
    purse = Purse(LIMIT, lambda: None)
    assert not purse.take(1, 0.0)
    purse.learn(Drawn(100, 0, 100, 0), 0, 0.0)
    assert purse.take(1, STALE_S)
    assert not purse.take(1, STALE_S + 1)


@pytest.mark.parametrize(
    ("policy", "owners", "expected"),
    [
        pytest.param(BudgetPolicy(), [Owner("t", "a", "ann", None)], {}, id="off"),
        pytest.param(
            BudgetPolicy(sweep=5),
            [Owner("t", "a", "ann", None), Owner("t", "b", "bob", 7)],
            {"sweep:t/a": 5, "sweep:t/b": 7},
            id="own-before-general",
        ),
        pytest.param(
            BudgetPolicy(users={"ann": 3}, day=9),
            [Owner("t", "a", "ann", None), Owner("t", "b", "bob", None)],
            {"user:ann": 3, "day:1970-01-02": 9},
            id="user-and-day",
        ),
    ],
)
def test_budgets_that_bind_a_call(
    policy: BudgetPolicy, owners: list[Owner], expected: dict[str, int]
) -> None:
    assert set(limits_of(policy, owners, 86_400.0)) == {Limited(*one) for one in expected.items()}
