"""Which queued runs start now, and why each of the others does not: a function of one snapshot."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fde_ray.model.scheduling import Wait, WaitReason
from fde_ray.model.wording import counted
from fde_ray.store.runs.breakers import BreakerRow
from fde_ray.store.runs.outlook import WaitingRun

SweepKey = tuple[str, str]
"""(tenant, name)."""
ScopeKey = tuple[str, str]
"""(scope, key) of a breaker."""


class Budget(NamedTuple):
    """Money in nano-dollars. `unpriced` = calls whose price nobody knows, and that count."""

    of: str
    limit: int
    spent: int
    unpriced: int


class SweepFacts(NamedTuple):
    """A sweep that runs. `holding` = its runs with a sandbox or a grant; `budgets` = all that
    bind it."""

    key: SweepKey
    user: str
    priority: int
    holding: int
    state: str = "running"
    budgets: tuple[Budget, ...] = ()


class Limits(NamedTuple):
    places: int
    """Runs with a sandbox or a grant at once."""
    per_supervisor: int
    per_user: int | None
    weights: Mapping[str, float]


class Snapshot(NamedTuple):
    sweeps: Sequence[SweepFacts]
    queue: Sequence[WaitingRun]
    limits: Limits
    holding: int
    by_model: Mapping[str, int]
    """Runs with a sandbox or a grant."""
    by_owner: Mapping[str, int]
    """Runs at work or granted, by the supervisor that holds their shard."""
    owners: Mapping[int, str]
    tokens: int | None
    """Starts in the bucket; None = there is no bucket."""
    model_caps: Mapping[str, int]
    """What providers were measured to bear; absent = no trouble."""
    backlog: str | None
    """Why grading cannot take more; None = it can."""
    breakers: Mapping[ScopeKey, BreakerRow]
    pool: str


class Decision(NamedTuple):
    grants: tuple[str, ...]
    waits: dict[str, Wait]
    """Of every run of the queue that is not granted."""
    probes: dict[ScopeKey, int]
    """Starts that half-open breakers let through."""


def decide(snapshot: Snapshot) -> Decision:
    """Grant what may start. No cap is passed; nothing that may start waits while places are free.

    The user who holds least for his weight comes first, then that user's sweep which holds least
    for its priority (each step doubles its share), then the order of the sweep.
    """
    return _Round(snapshot).played()


class _Sweep:
    """The runs of a sweep that are still to be looked at, in its order."""

    def __init__(self, facts: SweepFacts, runs: list[WaitingRun]) -> None:
        self.facts, self.holding = facts, facts.holding
        self.runs = sorted(runs, key=lambda run: (run.place, run.run_id), reverse=True)

    def ratio(self) -> float:
        return float(self.holding * 2.0**-self.facts.priority)


class _Round:
    def __init__(self, snapshot: Snapshot) -> None:
        self._s = snapshot
        self._free = max(0, snapshot.limits.places - snapshot.holding)
        self._by_model = defaultdict(int, snapshot.by_model)
        self._by_owner = defaultdict(int, snapshot.by_owner)
        self._by_user: defaultdict[str, int] = defaultdict(int)
        for sweep in snapshot.sweeps:
            self._by_user[sweep.user] += sweep.holding
        self._grants: list[str] = []
        self._granted: set[str] = set()
        self._waits: dict[str, Wait] = {}
        self._probes: defaultdict[ScopeKey, int] = defaultdict(int)

    def played(self) -> Decision:
        sweeps = self._sweeps()
        if (stop := self._stop()) is None:
            self._share(sweeps)
        else:
            self._leave(sweeps, stop)
        waits = {run: wait for run, wait in self._waits.items() if run not in self._granted}
        return Decision(tuple(self._grants), waits, dict(self._probes))

    def _sweeps(self) -> list[_Sweep]:
        """Return the sweeps whose runs may start; those of the others get their reason."""
        runs: defaultdict[SweepKey, list[WaitingRun]] = defaultdict(list)
        for run in self._s.queue:
            runs[run.tenant, run.sweep].append(run)
        found = []
        for facts in self._s.sweeps:
            wait = self._sweep_wait(facts)
            if wait is None:
                found.append(_Sweep(facts, runs[facts.key]))
                continue
            for run in runs[facts.key]:
                self._waits[run.run_id] = wait
        return found

    def _sweep_wait(self, sweep: SweepFacts) -> Wait | None:
        if sweep.state != "running":
            return Wait(WaitReason.PAUSED, f"its sweep is {sweep.state}")
        tenant, name = sweep.key
        if (wait := self._broken("sweep", f"{tenant}/{name}", WaitReason.BREAKER)) is not None:
            return wait
        for budget in sweep.budgets:
            if budget.unpriced:
                calls = counted(budget.unpriced, "call")
                detail = f"{budget.of} has a budget, but there is no known price for {calls}"
                return Wait(WaitReason.BUDGET, detail)
            if budget.spent >= budget.limit:
                return Wait(WaitReason.BUDGET, f"{budget.of} has spent {_of(budget)}")
        return None

    def _broken(self, scope: str, key: str, reason: WaitReason) -> Wait | None:
        row = self._s.breakers.get((scope, key))
        if row is None or row.state == "closed":
            return None
        if row.state == "half_open" and self._probes[scope, key] < row.probes:
            return None
        if row.state == "half_open":
            return Wait(reason, f"the breaker of {scope} {key} waits for its probes ({row.kind})")
        return Wait(reason, f"the breaker of {scope} {key} is open: {row.kind}, {row.detail}")

    def _stop(self) -> Wait | None:
        if self._s.backlog is not None:
            return Wait(WaitReason.BACKLOG, self._s.backlog)
        return self._broken("pool", self._s.pool, WaitReason.BREAKER)

    def _share(self, sweeps: list[_Sweep]) -> None:
        users = self._users(sweeps)
        turns = [(self._share_of(user), user) for user in users]
        heapq.heapify(turns)
        while turns:
            _, user = heapq.heappop(turns)
            if self._serve(user, users[user]):
                heapq.heappush(turns, (self._share_of(user), user))

    def _users(self, sweeps: list[_Sweep]) -> dict[str, list[tuple[float, int, _Sweep]]]:
        users: dict[str, list[tuple[float, int, _Sweep]]] = {}
        for place, sweep in enumerate(sweeps):
            if sweep.runs:
                users.setdefault(sweep.facts.user, []).append((sweep.ratio(), place, sweep))
        for own in users.values():
            heapq.heapify(own)
        return users

    def _share_of(self, user: str) -> float:
        return self._by_user[user] / self._s.limits.weights.get(user, 1.0)

    def _serve(self, user: str, sweeps: list[tuple[float, int, _Sweep]]) -> bool:
        """Look at the next run of a user; False = that was the last one."""
        _, place, sweep = sweeps[0]
        run = sweep.runs.pop()
        if run.run_id not in self._granted:
            wait = self._run_wait(sweep, run)
            if wait is None:
                self._grant(sweep, run)
            else:
                self._waits.setdefault(run.run_id, wait)
        if sweep.runs:
            heapq.heapreplace(sweeps, (sweep.ratio(), place, sweep))
        else:
            heapq.heappop(sweeps)
        return bool(sweeps)

    def _run_wait(self, sweep: _Sweep, run: WaitingRun) -> Wait | None:
        s, user = self._s, sweep.facts.user
        tenant, name = sweep.facts.key
        for scope, key, reason in (
            ("sweep", f"{tenant}/{name}", WaitReason.BREAKER),
            ("image", run.image, WaitReason.IMAGE),
            ("pool", s.pool, WaitReason.BREAKER),
        ):
            if (wait := self._broken(scope, key, reason)) is not None:
                return wait
        quota = s.limits.per_user
        if quota is not None and self._by_user[user] >= quota:
            detail = f"user {user} has {self._by_user[user]} of {counted(quota, 'run')}"
            return Wait(WaitReason.QUOTA, detail)
        cap = s.model_caps.get(run.model)
        if cap is not None and self._by_model[run.model] >= cap:
            detail = f"the provider of {run.model} bears {counted(cap, 'run')} now"
            return Wait(WaitReason.PROVIDER, detail)
        return self._owner_wait(run) or self._scarce(sweep)

    def _owner_wait(self, run: WaitingRun) -> Wait | None:
        owner, most = self._s.owners.get(run.shard), self._s.limits.per_supervisor
        if owner is None:
            return Wait(WaitReason.CAPACITY, f"no supervisor holds its shard {run.shard}")
        if self._by_owner[owner] >= most:
            detail = f"supervisor {owner} drives {counted(most, 'run')}, its most"
            return Wait(WaitReason.CAPACITY, detail)
        return None

    def _scarce(self, sweep: _Sweep) -> Wait | None:
        """Return what there is too little of; the first who finds it so is the next in turn."""
        s = self._s
        if len(self._grants) >= self._free:
            held = s.holding + len(self._grants)
            detail = f"{counted(held, 'run')} in {counted(s.limits.places, 'place')}"
            wait = Wait(WaitReason.CAPACITY, detail)
        elif s.tokens is not None and len(self._grants) >= s.tokens:
            wait = Wait(WaitReason.TOKENS, "the starts of this moment are used up")
        else:
            return None
        first = self._first_in_turn
        if first is None:
            self._first_in_turn = sweep
        elif first is not sweep:
            return Wait(
                WaitReason.FAIR_SHARE, f"sweep {first.facts.key[1]} holds less of its share"
            )
        return wait

    _first_in_turn: _Sweep | None = None

    def _grant(self, sweep: _Sweep, run: WaitingRun) -> None:
        self._grants.append(run.run_id)
        self._granted.add(run.run_id)
        sweep.holding += 1
        self._by_user[sweep.facts.user] += 1
        self._by_model[run.model] += 1
        self._by_owner[self._s.owners[run.shard]] += 1
        tenant, name = sweep.facts.key
        for key in (("sweep", f"{tenant}/{name}"), ("image", run.image), ("pool", self._s.pool)):
            row = self._s.breakers.get(key)
            if row is not None and row.state == "half_open":
                self._probes[key] += 1

    def _leave(self, sweeps: list[_Sweep], wait: Wait) -> None:
        for sweep in sweeps:
            for run in sweep.runs:
                self._waits.setdefault(run.run_id, wait)


def _of(budget: Budget) -> str:
    return f"${budget.spent / 1e9:.2f} of its budget of ${budget.limit / 1e9:.2f}"
