"""The kill switch: what it answers, to whom, and that nobody can keep it from answering."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from fde_ray.shim.health import CALLERS, Health
from fde_ray.shim.wire import Exchange

PATH = "/nonce-0123456789abcdef"


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield listener


@pytest.fixture
def health(listener: socket.socket, clock: Clock) -> Iterator[Health]:
    health = Health(listener, PATH, monotonic=clock)
    health.start()
    yield health
    health.close()


def ask(listener: socket.socket, path: str = PATH) -> int:
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with Exchange(address, "GET", path, timeout=10.0) as reply:
        assert reply.read() == b""
        return reply.status


def test_yes_until_the_end_is_ordered_then_no(health: Health, listener: socket.socket) -> None:
    assert [ask(listener), ask(listener, "/"), ask(listener, PATH + "/")] == [200, 404, 404]
    health.end()
    health.end()
    assert [ask(listener), ask(listener, "/x")] == [503, 404]


def test_quiet_counts_from_the_last_question_of_who_knows_the_path(
    health: Health, listener: socket.socket, clock: Clock
) -> None:
    clock.now = 60.0
    health.end()
    clock.now = 61.0
    assert (health.quiet_s(), health.since_end()) == (1.0, 1.0)
    ask(listener)
    clock.now = 62.0
    ask(listener, "/guess")
    health.end()
    assert (health.quiet_s(), health.since_end()) == (1.0, 2.0)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\r\n\r\n",
        b"\x00\xff" * 40_000,
        b"GET\r\n\r\n",
        b"POST " + PATH.encode() + b" HTTP/1.1\r\n\r\n",
        b"GET /" + b"a" * 20_000,
        b"GET " + PATH.encode() + b" HTTP/1.1\r\n",
    ],
    ids=["nothing", "empty", "noise", "short", "post", "long", "unfinished"],
)
def test_broken_question_gets_no_yes_and_harms_nobody(
    health: Health, listener: socket.socket, raw: bytes
) -> None:
    with socket.create_connection(listener.getsockname(), timeout=10.0) as sock:
        reply = b""
        try:
            sock.sendall(raw)
            sock.shutdown(socket.SHUT_WR)
            reply = b"".join(iter(lambda: sock.recv(65536), b""))
        except OSError:  # it had hung up before we had said all
            pass
        assert b" 200 " not in reply
        assert b" 503 " not in reply
    assert ask(listener) == 200


def test_silent_callers_make_room_for_the_kubelet(
    health: Health, listener: socket.socket, clock: Clock
) -> None:
    """And while somebody is pushed out, the kubelet may be the one: nobody is called dead."""
    health.end()
    clock.now += 10.0
    silent = [socket.create_connection(listener.getsockname()) for _ in range(CALLERS + 20)]
    try:
        assert ask(listener) == 503
        clock.now += 5.0
        assert health.quiet_s() == 5.0
        again = CALLERS + 1  # the first ones are slow by now, and dropped
        silent += [socket.create_connection(listener.getsockname()) for _ in range(again)]
        end = time.monotonic() + 10.0
        while health.quiet_s() and time.monotonic() < end:
            time.sleep(0.01)
        assert health.quiet_s() == 0.0
    finally:
        for sock in silent:
            sock.close()


def test_slow_callers_are_dropped(health: Health, listener: socket.socket, clock: Clock) -> None:
    with socket.create_connection(listener.getsockname(), timeout=10.0) as sock:
        sock.sendall(b"GET ")
        assert ask(listener) == 200
        clock.now += 3.0
        assert sock.recv(100) == b""
