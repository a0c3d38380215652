"""The isolation gate: on a virtual clock, and its connections on loopback."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fde_ray.shim.gate import Gate, GateSite, address_of, reachable
from fde_ray.shim.hosts import NotStarted

SITE = GateSite(("10.0.0.1:443", "10.0.0.2:53"), limit_s=60.0)


class World:
    """What the gate sees, at each moment of a clock that moves only when it pauses."""

    def __init__(self) -> None:
        self.now = 100.0
        self.tried: list[float] = []
        self.asked: list[float] = []
        self.open_until: dict[str, float] = {}
        self.away: Callable[[float], bool] = lambda _: False
        self.over_at = float("inf")

    def gate(self, site: GateSite = SITE) -> Gate:
        return Gate(site, self.answers, reachable=self.reachable, monotonic=lambda: self.now)

    def answers(self) -> bool:
        self.asked.append(self.now)
        return not self.away(self.now)

    def reachable(self, addresses: Sequence[str]) -> tuple[str, ...]:
        self.tried.append(self.now)
        return tuple(a for a in addresses if self.now < self.open_until.get(a, 0.0))

    def pause(self, seconds: float) -> bool:
        self.now += seconds
        return self.now >= self.over_at


def test_three_rounds_over_five_seconds_between_two_answers_of_the_gateway() -> None:
    world = World()
    report = world.gate().open(world.pause)
    assert world.tried == [100.0, 102.5, 105.0]
    assert world.asked == [100.0, 105.0]
    assert report == {
        "seconds": 5.0,
        "rounds": 3,
        "forbidden": list(SITE.forbidden),
        "opened": [],
    }


def test_one_success_starts_all_rounds_again() -> None:
    world = World()
    world.open_until = {"10.0.0.2:53": 104.0}
    world.away = lambda now: now < 101.0
    report = world.gate().open(world.pause)
    assert report["opened"] == ["10.0.0.2:53"]
    assert world.tried[-1] - world.tried[-3] == 5.0
    assert world.tried[-3] >= 104.0


def test_gateway_that_is_gone_after_the_rounds_proves_nothing() -> None:
    world = World()
    world.away = lambda now: 104.0 < now < 110.0
    world.gate().open(world.pause)
    assert len(world.tried) == 6


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"open_until": {"10.0.0.1:443": 1e9}}, "10.0.0.1:443 can be reached after 6"),
        ({"away": lambda _: True}, "the gateway does not answer after 6"),
        ({"away": lambda now: now > 101.0}, "does not answer"),
        ({"open_until": {"10.0.0.1:443": 1e9}, "over_at": 103.0}, "ended first"),
        ({"over_at": 102.0}, "ended first"),
    ],
)
def test_gate_that_stays_shut_says_why(change: dict[str, Any], said: str) -> None:
    world = World()
    for name, value in change.items():
        setattr(world, name, value)
    with pytest.raises(NotStarted, match=said):
        world.gate().open(world.pause)
    assert world.now < 170.0


def test_watch_looks_again_until_something_opens() -> None:
    world = World()
    lost: list[str] = []
    world.over_at = 5000.0
    world.gate().watch(world.pause, lost.append)
    assert (len(world.tried), lost) == (8, [])
    world.over_at = 1e9
    world.open_until = {"10.0.0.1:443": 1e9}
    world.gate().watch(world.pause, lost.append)
    assert lost == ["10.0.0.1:443 can be reached"]


@pytest.mark.parametrize(
    "text", ["", "host:80", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "::1:80", ":9"]
)
def test_address_that_is_no_numeric_one_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a numeric|has no port"):
        address_of(text)


def test_addresses_of_both_families_are_read() -> None:
    assert address_of("10.0.0.1:443") == (socket.AF_INET, "10.0.0.1", 443)
    assert address_of("[fd00::1]:53") == (socket.AF_INET6, "fd00::1", 53)


def test_listening_address_is_reachable_and_a_silent_one_is_not() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as open_one,
        socket.create_server(("127.0.0.1", 0), backlog=0) as full,
        socket.socket() as closed,
    ):
        closed.bind(("127.0.0.1", 0))
        names = [f"127.0.0.1:{sock.getsockname()[1]}" for sock in (open_one, full, closed)]
        fillers = []
        for _ in range(8):  # a full backlog drops further connections: they time out
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
            fillers.append(filler)
        assert reachable(names, 0.3) == (names[0],)
        for filler in fillers:
            filler.close()
