"""The policy: no cap is passed, nothing waits without need, everybody's turn comes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fde_ray.engine.scheduling.policy import Budget, Limits, Snapshot, SweepFacts, decide
from fde_ray.model.scheduling import WaitReason
from fde_ray.store.runs.breakers import BreakerRow
from fde_ray.store.runs.outlook import WaitingRun

MODELS, IMAGES, USERS = ("m0", "m1", "m2"), ("i0", "i1"), ("ann", "bob", "cyd")
OWNERS = {shard: f"sup-{shard % 3}" for shard in range(8)}


def waiting(
    n: int, sweep: str = "s0", *, model: str = "m0", image: str = "i0", shard: int = 0
) -> WaitingRun:
    return WaitingRun("local", sweep, f"r{n}", model, image, shard, n)


def facts(sweep: str = "s0", user: str = "ann", **changes: Any) -> SweepFacts:
    return SweepFacts(("local", sweep), user, 0, 0)._replace(**changes)


def snapshot(**changes: Any) -> Snapshot:
    plain = Snapshot(
        sweeps=[facts()],
        queue=[waiting(n) for n in range(3)],
        limits=Limits(places=100, per_supervisor=500, per_user=None, weights={}),
        holding=0,
        by_model={},
        by_owner={},
        owners=OWNERS,
        tokens=None,
        model_caps={},
        backlog=None,
        breakers={},
        pool="local",
    )
    return plain._replace(**changes)


def breaker(scope: Any, key: str, state: Any = "open", probes: int = 0) -> BreakerRow:
    return BreakerRow(scope, key, state, "shim_lost", "11 of 20", 0.0, 60.0, 60, probes)


def reasons(found: Snapshot) -> Counter[WaitReason]:
    return Counter(wait.reason for wait in decide(found).waits.values())


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    count = draw(st.integers(1, 4))
    sweeps = [
        facts(
            f"s{k}",
            draw(st.sampled_from(USERS)),
            priority=draw(st.integers(-3, 3)),
            holding=draw(st.integers(0, 6)),
        )
        for k in range(count)
    ]
    queue = [
        waiting(
            n,
            f"s{draw(st.integers(0, count - 1))}",
            model=draw(st.sampled_from(MODELS)),
            image=draw(st.sampled_from(IMAGES)),
            shard=draw(st.integers(0, 7)),
        )
        for n in range(draw(st.integers(0, 25)))
    ]
    numbers = st.integers(0, 12)
    return snapshot(
        sweeps=sweeps,
        queue=queue,
        limits=Limits(
            draw(st.integers(0, 20)),
            draw(st.integers(1, 6)),
            draw(st.none() | st.integers(1, 8)),
            draw(st.dictionaries(st.sampled_from(USERS), st.floats(0.1, 8))),
        ),
        holding=sum(sweep.holding for sweep in sweeps),
        by_model=draw(st.dictionaries(st.sampled_from(MODELS), numbers)),
        by_owner=draw(st.dictionaries(st.sampled_from(["sup-0", "sup-1", "sup-2"]), numbers)),
        owners={shard: owner for shard, owner in OWNERS.items() if draw(st.integers(0, 9))},
        tokens=draw(st.none() | st.integers(0, 10)),
        model_caps=draw(st.dictionaries(st.sampled_from(MODELS), st.integers(1, 8))),
        breakers={
            ("image", image): breaker(
                "image", image, draw(st.sampled_from(["open", "half_open"])), 2
            )
            for image in draw(st.sets(st.sampled_from(IMAGES), max_size=1))
        },
    )


def granted_runs(found: Snapshot) -> list[WaitingRun]:
    known = {run.run_id: run for run in found.queue}
    return [known[run_id] for run_id in decide(found).grants]


def user_of(found: Snapshot, run: WaitingRun) -> str:
    return next(sweep.user for sweep in found.sweeps if sweep.key[1] == run.sweep)


@given(snapshots())
def test_no_cap_is_ever_passed(found: Snapshot) -> None:
    runs, limits = granted_runs(found), found.limits
    assert len(runs) <= max(0, limits.places - found.holding)
    assert found.tokens is None or len(runs) <= found.tokens
    for model, cap in found.model_caps.items():
        new = sum(run.model == model for run in runs)
        assert not new or found.by_model.get(model, 0) + new <= cap
    for owner, new in Counter(found.owners[run.shard] for run in runs).items():
        assert found.by_owner.get(owner, 0) + new <= limits.per_supervisor
    for user, new in Counter(user_of(found, run) for run in runs).items():
        held = sum(sweep.holding for sweep in found.sweeps if sweep.user == user)
        assert limits.per_user is None or held + new <= limits.per_user
    for (_, image), row in found.breakers.items():
        assert sum(run.image == image for run in runs) <= (row.probes if row.state != "open" else 0)


@given(snapshots())
def test_every_run_is_granted_or_has_a_reason(found: Snapshot) -> None:
    decision = decide(found)
    assert len(set(decision.grants)) == len(decision.grants)
    assert {*decision.grants, *decision.waits} == {run.run_id for run in found.queue}
    assert not {*decision.grants} & decision.waits.keys()


@given(snapshots())
def test_nothing_that_may_start_waits_while_places_are_free(found: Snapshot) -> None:
    decision = decide(found)
    scarce = {WaitReason.CAPACITY, WaitReason.TOKENS, WaitReason.FAIR_SHARE}
    free = found.limits.places - found.holding - len(decision.grants)
    tokens = 1 if found.tokens is None else found.tokens - len(decision.grants)
    if free > 0 and tokens > 0:
        left = [wait for wait in decision.waits.values() if wait.reason in scarce]
        assert all("supervisor" in wait.detail for wait in left)


@given(snapshots(), st.integers(0, 3), st.integers(1, 4))
def test_more_priority_never_gives_a_sweep_less(found: Snapshot, chosen: int, more: int) -> None:
    chosen %= len(found.sweeps)
    # One model, image and supervisor: what others take must not decide which of its own may start.
    queue = [run._replace(model="m0", image="i0", shard=0) for run in found.queue]
    one = found._replace(queue=queue, breakers={}, owners={0: "sup-0"})
    raised = list(one.sweeps)
    raised[chosen] = raised[chosen]._replace(priority=raised[chosen].priority + more)
    name = raised[chosen].key[1]

    def share(of: Snapshot) -> int:
        return sum(run.sweep == name for run in granted_runs(of))

    assert share(one._replace(sweeps=raised)) >= share(one)


@given(
    st.lists(st.integers(-3, 3), min_size=2, max_size=4),
    st.lists(st.sampled_from(USERS), min_size=4, max_size=4),
    st.integers(1, 3),
)
def test_no_sweep_starves_while_places_come_free(
    priorities: list[int], users: list[str], places: int
) -> None:
    """Runs end oldest first; every sweep has runs without end and gets its turn."""
    sweeps = [facts(f"s{k}", users[k], priority=p) for k, p in enumerate(priorities)]
    live: list[str] = []
    served: Counter[str] = Counter()
    for n in range(200):
        held = Counter(live)
        now = [sweep._replace(holding=held[sweep.key[1]]) for sweep in sweeps]
        queue = [waiting(n * 10 + k, f"s{k}") for k in range(len(sweeps))]
        limits = Limits(places, 500, None, {})
        found = snapshot(sweeps=now, queue=queue, limits=limits, holding=len(live))
        started = [run.sweep for run in granted_runs(found)]
        served.update(started)
        live = [*live, *started][1:] if len(live) + len(started) >= places else [*live, *started]
    if places >= len(sweeps):
        assert set(served) == {sweep.key[1] for sweep in sweeps}
    assert sum(served.values()) >= 200


def test_users_share_by_weight_and_sweeps_of_a_user_by_priority() -> None:
    sweeps = [facts("s0", "ann"), facts("s1", "bob"), facts("s2", "bob", priority=1)]
    queue = [waiting(n, f"s{n % 3}") for n in range(90)]
    limits = Limits(36, 500, None, {"bob": 2.0})
    found = Counter(
        run.sweep for run in granted_runs(snapshot(sweeps=sweeps, queue=queue, limits=limits))
    )
    assert found == {"s0": 12, "s1": 8, "s2": 16}


def test_runs_of_a_sweep_start_in_its_order() -> None:
    found = snapshot(queue=[waiting(n) for n in (3, 1, 2)], tokens=2)
    assert decide(found).grants == ("r1", "r2")


def test_run_that_two_sweeps_want_is_granted_once() -> None:
    queue = [waiting(0, "s0"), waiting(0, "s1")]
    decision = decide(snapshot(sweeps=[facts("s0"), facts("s1")], queue=queue))
    assert (decision.grants, decision.waits) == (("r0",), {})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"sweeps": [facts(state="paused")]}, WaitReason.PAUSED, id="paused"),
        pytest.param(
            {"breakers": {("sweep", "local/s0"): breaker("sweep", "local/s0")}},
            WaitReason.BREAKER,
            id="breaker-of-sweep",
        ),
        pytest.param(
            {"breakers": {("pool", "local"): breaker("pool", "local")}},
            WaitReason.BREAKER,
            id="breaker-of-pool",
        ),
        pytest.param(
            {"breakers": {("image", "i0"): breaker("image", "i0")}}, WaitReason.IMAGE, id="image"
        ),
        pytest.param(
            {"sweeps": [facts(budgets=(Budget("sweep s0", 5, 5, 0),))]},
            WaitReason.BUDGET,
            id="budget-spent",
        ),
        pytest.param(
            {"sweeps": [facts(budgets=(Budget("sweep s0", 5, 0, 1),))]},
            WaitReason.BUDGET,
            id="price-unknown",
        ),
        pytest.param({"backlog": "70 wait"}, WaitReason.BACKLOG, id="backlog"),
        pytest.param(
            {"limits": Limits(100, 500, 4, {}), "sweeps": [facts(holding=4)]},
            WaitReason.QUOTA,
            id="quota",
        ),
        pytest.param(
            {"model_caps": {"m0": 2}, "by_model": {"m0": 2}}, WaitReason.PROVIDER, id="provider"
        ),
        pytest.param({"holding": 100}, WaitReason.CAPACITY, id="capacity"),
        pytest.param({"by_owner": {"sup-0": 500}}, WaitReason.CAPACITY, id="supervisor-full"),
        pytest.param({"owners": {}}, WaitReason.CAPACITY, id="no-supervisor"),
        pytest.param({"tokens": 0}, WaitReason.TOKENS, id="tokens"),
    ],
)
def test_each_reason_is_told(changes: dict[str, Any], reason: WaitReason) -> None:
    assert reasons(snapshot(**changes)) == {reason: 3}


def test_sweep_that_holds_more_of_its_share_waits_for_the_other() -> None:
    sweeps = [facts("s0", holding=5), facts("s1", holding=4)]
    found = snapshot(
        sweeps=sweeps, queue=[waiting(0, "s0"), waiting(1, "s1")], limits=Limits(9, 9, None, {})
    )
    waits = decide(found._replace(holding=9)).waits
    assert waits["r1"].reason is WaitReason.CAPACITY
    assert waits["r0"].reason is WaitReason.FAIR_SHARE


def test_half_open_breaker_lets_its_probes_through_and_no_more() -> None:
    rows = {("sweep", "local/s0"): breaker("sweep", "local/s0", "half_open", probes=2)}
    decision = decide(snapshot(breakers=rows))
    assert decision.grants == ("r0", "r1")
    assert decision.probes == {("sweep", "local/s0"): 2}
    assert decision.waits["r2"].reason is WaitReason.BREAKER


def test_a_quarter_of_a_share_is_not_lost_to_a_user_that_is_held_up() -> None:
    """Places that one user cannot use go to the others at once."""
    sweeps = [facts("s0", "ann"), facts("s1", "bob")]
    queue = [waiting(n, "s0", model="m1") for n in range(5)] + [
        waiting(n, "s1") for n in range(5, 10)
    ]
    found = snapshot(
        sweeps=sweeps, queue=queue, limits=Limits(4, 9, None, {}), model_caps={"m1": 1}
    )
    assert Counter(run.sweep for run in granted_runs(found)) == {"s0": 1, "s1": 3}
