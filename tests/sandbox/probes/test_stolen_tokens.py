"""The attempts on the run-plane, against a real one: each is refused, and could tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fde_ray.sandbox.probes.catalogue import ATTEMPTS
from fde_ray.sandbox.probes.plane import ProvenPlane, proven_plane
from fde_ray.sandbox.probes.programs import harness, stealing

HOST = "127.0.0.1"
SLOW = {"stretched_clock"}
STOLEN = [a.call for a in ATTEMPTS if a.call.startswith("stealing.") and a.id not in SLOW]


@pytest.fixture
async def plane() -> AsyncIterator[ProvenPlane]:
    async with proven_plane(HOST) as plane:
        yield plane


def outcomes(plane: ProvenPlane, calls: list[str], **changes: Any) -> dict[str, tuple[str, str]]:
    loot = plane.loot
    job = loot | {"plane": [HOST, loot["port"]], "own_secret": loot["secret"]} | changes
    return {
        call: harness.outcome_of(getattr(stealing, call.partition(".")[2]), job) for call in calls
    }


async def test_a_real_plane_refuses_whatever_is_stolen(plane: ProvenPlane) -> None:
    found = await asyncio.to_thread(outcomes, plane, STOLEN)
    assert len(found) >= 7
    assert {outcome for outcome, _ in found.values()} == {"refused"}, found


async def test_an_attempt_gets_through_where_there_is_a_hole(plane: ProvenPlane) -> None:
    """A plane that takes what it should not looks like one whose bad tokens are good."""
    good = plane.loot["token"]
    calls = ["stealing.expired_token", "stealing.replayed_token"]
    found = await asyncio.to_thread(outcomes, plane, calls, expired=good, replayed=good)
    assert {outcome for outcome, _ in found.values()} == {"done"}


async def test_without_a_good_token_a_refusal_says_nothing(plane: ProvenPlane) -> None:
    calls = [c for c in STOLEN if c not in ("stealing.without_token", "stealing.wrong_secret")]
    bad = ".".join(["e30"] * 3)
    found = await asyncio.to_thread(outcomes, plane, calls, token=bad)
    assert {outcome for outcome, _ in found.values()} == {"broken"}, found
