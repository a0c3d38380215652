"""A pool of other processes: full, empty, dying, slow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fde_ray.engine.fleet.calls import CallWait, PoolCall, PoolReply, error_of, trouble_of
from fde_ray.engine.holds import HeldTurn
from fde_ray.model.errors import (
    FdeRayError,
    ProviderError,
    Refusal,
    RunFailure,
    StoreError,
    UserError,
)
from fde_ray.model.failures import FailureKind, Fault
from fde_ray.model.states import PauseCause
from tests.engine.fleet.doubles import BILL, FakeMember, Turns, dead, full, remote, replied, request
from tests.engine.virtual import played

TURN = HeldTurn(BILL.subject, 3, PauseCause.CUSTOMER_DOWN)


def test_a_full_member_leaves_the_question_waiting_and_says_why() -> None:
    async def main() -> None:
        turns, member = Turns(), FakeMember(full(), full(), full(), replied("yes"))
        chat = remote(turns, a=member).bound(BILL, "place", TURN)
        assert (await chat(request())).text == "yes"
        assert len({call.call_id for call in member.calls}) == 1
        held = [cause for cause in turns.said if cause is not None]
        assert set(held) == {PauseCause.RATE_LIMIT}
        assert turns.said[-1] is None
        assert asyncio.get_running_loop().time() > 2.0

    played(main)


def test_a_pool_without_members_waits_for_one_to_come() -> None:
    async def main() -> None:
        turns = Turns()
        pool = remote(turns)
        asking = asyncio.create_task(pool.bound(BILL, "place", TURN)(request()))  # type: ignore[arg-type]
        await asyncio.sleep(100)
        assert not asking.done()
        assert pool.in_flight == 1
        pool.set_members({"a": FakeMember(replied("yes"))})
        at = asyncio.get_running_loop().time()
        assert (await asking).text == "yes"
        assert asyncio.get_running_loop().time() == at
        assert (pool.in_flight, turns.said[-1]) == (0, None)
        assert PauseCause.CUSTOMER_DOWN in turns.said

    played(main)


def test_a_call_outlasts_hours_without_a_member() -> None:
    async def main() -> None:
        pool = remote(Turns())
        chat = pool.bound(BILL, "place", TURN)
        asking = asyncio.ensure_future(chat(request()))
        await asyncio.sleep(12 * 3600)
        pool.set_members({"a": FakeMember(replied("yes"))})
        assert (await asking).text == "yes"

    played(main)


def test_calls_go_to_the_member_with_the_fewest() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def slow(_call: PoolCall) -> PoolReply:
            await gate.wait()
            return replied("yes")

        a, b = FakeMember(slow), FakeMember(slow)
        pool = remote(a=a, b=b)
        chat = pool.bound(BILL, "place")
        asking = [asyncio.ensure_future(chat(request(str(n)))) for n in range(6)]
        await asyncio.sleep(1)
        assert (len(a.calls), len(b.calls), pool.in_flight) == (3, 3, 6)
        gate.set()
        await asyncio.gather(*asking)

    played(main)


def test_a_wait_of_the_member_is_passed_on_and_the_call_asked_for_again() -> None:
    async def main() -> None:
        turns = Turns()
        waits = CallWait(cause=PauseCause.PROVIDER, since=1.0)
        member = FakeMember(PoolReply(wait=waits), PoolReply(wait=waits), replied("yes"))
        chat = remote(turns, a=member).bound(BILL, "place", TURN)
        assert (await chat(request())).text == "yes"
        assert [call.heard for call in member.calls] == [None, waits, waits]
        assert turns.said == [None, PauseCause.CUSTOMER_DOWN, None]

    played(main)


@pytest.mark.parametrize(
    "error",
    [
        ProviderError("no", status=503, retry_after_s=2.0, uncertain=True),
        ProviderError("bad key", kind=FailureKind.PROVIDER_REJECTED, status=401),
        Refusal(402, Fault.BUDGET, "spent", code="budget"),
        StoreError("away"),
        RunFailure(FailureKind.CUSTOMER_FAILED, "twice empty"),
        UserError("no price for this model; add one"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_trouble_of_a_member_is_the_same_error_here(error: FdeRayError) -> None:
    trouble = trouble_of(error)
    known = error_of(type(trouble).model_validate_json(trouble.model_dump_json()))
    assert (type(known), known.__dict__, str(known)) == (type(error), error.__dict__, str(error))


def test_what_nobody_foresaw_in_a_member_is_an_internal_error_of_the_run() -> None:
    error = error_of(trouble_of(KeyError("x")))
    assert isinstance(error, RunFailure)
    assert error.kind is FailureKind.INTERNAL_ERROR


def test_trouble_ends_the_call() -> None:
    async def main() -> None:
        trouble = trouble_of(ProviderError("no", status=503))
        member = FakeMember(PoolReply(trouble=trouble))
        with pytest.raises(ProviderError, match="no"):
            await remote(a=member).bound(BILL, "place")(request())
        assert len(member.calls) == 1

    played(main)


def test_when_all_members_are_dead_the_call_waits_and_tries_them_again() -> None:
    async def main() -> Any:
        turns = Turns()
        a, b = FakeMember(dead(), replied("yes")), FakeMember(dead(), replied("yes"))
        reply = await remote(turns, a=a, b=b).bound(BILL, "place", TURN)(request())
        assert len(a.calls) + len(b.calls) == 3
        assert turns.said == [None, PauseCause.CUSTOMER_DOWN, None]
        return reply.text

    assert played(main) == "yes"
