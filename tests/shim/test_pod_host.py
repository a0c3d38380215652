"""A pod's host: one control connection, and the proof that the other container is dead."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fde_ray.shim.control import LINE_LIMIT, ControlLine
from fde_ray.shim.gate import GateSite
from fde_ray.shim.health import Health
from fde_ray.shim.hosts import NotStarted
from fde_ray.shim.inputs import read_inputs
from fde_ray.shim.plane import Plane
from fde_ray.shim.pod_host import PodHost, PodLaunched
from fde_ray.shim.pod_site import PodSite
from tests.sandbox.fake_plane import FakePlane
from tests.shim.loopback_pod import HEALTH_PATH, free_ports, probe

NEVER = threading.Event()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The shim's end and the runner's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        runner = socket.create_connection(listener.getsockname())
        shim, _ = listener.accept()
    yield shim, runner
    shim.close()
    runner.close()


@pytest.fixture
def health() -> Iterator[Health]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        health = Health(listener, HEALTH_PATH)
        health.start()
        yield health
        health.close()


def launched(sock: socket.socket, health: Health, limit_s: float = 5.0) -> PodLaunched:
    return PodLaunched(sock, health, quiet_s=0.3, limit_s=limit_s)


def test_runner_that_has_hung_up_in_silence_is_dead(
    pair: tuple[socket.socket, socket.socket], health: Health
) -> None:
    shim, runner = pair
    runner.sendall(b'{"type": "turn"}\n' * 1000)  # what it still says is thrown away
    runner.close()
    end = launched(shim, health).kill(NEVER)
    assert end.is_proven
    assert 0.3 <= end.seconds < 2.0


def test_order_to_end_reaches_a_runner_that_is_well(
    pair: tuple[socket.socket, socket.socket], health: Health
) -> None:
    shim, runner = pair
    launched(shim, health).strike()
    runner.settimeout(5.0)
    assert runner.recv(10) == b""


def test_open_connection_is_no_proof_however_quiet_it_is(
    pair: tuple[socket.socket, socket.socket], health: Health
) -> None:
    end = launched(pair[0], health, limit_s=0.6).kill(NEVER)
    assert not end.is_proven
    assert 0.6 <= end.seconds < 2.0


def test_kubelet_that_still_asks_is_no_proof(
    pair: tuple[socket.socket, socket.socket], health: Health
) -> None:
    shim, runner = pair
    runner.close()
    port = health._listener.getsockname()[1]
    stop = threading.Event()

    def keep_asking() -> None:
        while not stop.wait(0.05):
            assert probe(port) in (200, 503)

    kubelet = threading.Thread(target=keep_asking)
    kubelet.start()
    try:
        assert not launched(shim, health, limit_s=1.0).kill(NEVER).is_proven
    finally:
        stop.set()
        kubelet.join()


def test_who_is_in_a_hurry_gets_no_proof(
    pair: tuple[socket.socket, socket.socket], health: Health
) -> None:
    hurry = threading.Event()
    hurry.set()
    began = time.monotonic()
    assert not launched(pair[0], health).kill(hurry).is_proven
    assert time.monotonic() - began < 1.0


def test_reset_connection_is_closed(
    pair: tuple[socket.socket, socket.socket], health: Health
) -> None:
    shim, runner = pair
    shim.sendall(b"unread")
    runner.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    runner.close()
    assert launched(shim, health).kill(NEVER).is_proven


def test_end_is_seen_beside_a_thread_that_listens(
    pair: tuple[socket.socket, socket.socket], health: Health
) -> None:
    shim, runner = pair
    one = launched(shim, health)
    heard: list[Any] = []
    reader = threading.Thread(target=lambda: heard.append(one.hear()))
    reader.start()
    time.sleep(0.05)
    runner.close()
    assert one.kill(NEVER).is_proven
    reader.join(5.0)
    assert heard == [None]


@pytest.mark.parametrize(
    ("line", "heard"),
    [
        (b'{"type": "turn"}\n', {"type": "turn"}),
        (b"no json\n", {}),
        (b"[1]\n", {}),
        (b"\xff\xfe\n", {}),
        (b"[" * 100_000 + b"\n", {}),
        (b"[" + b"[]," * 1_000_000 + b"[]]\n", {}),
        (b'{"half": ', {}),
        (b"", None),
        (b"x" * (LINE_LIMIT + 1), None),
    ],
    ids=["turn", "words", "list", "bytes", "deep", "pieces", "half", "nothing", "huge"],
)
def test_line_of_any_shape_is_heard(
    pair: tuple[socket.socket, socket.socket], line: bytes, heard: Any
) -> None:
    shim, runner = pair

    def say() -> None:
        runner.sendall(line)
        runner.close()

    speaker = threading.Thread(target=say)
    speaker.start()
    assert ControlLine(shim).hear() == heard
    shim.close()
    speaker.join()


# --- the host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[PodHost]:
    ports = free_ports(3)
    site = PodSite(*(ports[0], HEALTH_PATH, ports[1], ports[2], (), GateSite(("127.0.0.1:9",))))
    host = PodHost(site, Plane("unix:/nowhere", "run.1", "x"))
    yield host
    host.shut()


def test_one_connection_is_taken_and_the_next_refused(host: PodHost, tmp_path: Path) -> None:
    inputs = read_inputs(FakePlane(tmp_path).inputs)
    place = host._control.getsockname()
    runner = socket.create_connection(place)
    runner.sendall(json.dumps({"type": "hello", "pid": 1}).encode() + b"\n")
    one = host.launch(inputs, NEVER)
    assert isinstance(one, PodLaunched)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place)
    assert one.hear() == {"type": "hello", "pid": 1}
    runner.close()
    assert one.hear() is None
    one._stream.close()
    one._control.close()


def test_end_of_the_session_ends_the_wait_for_a_runner(host: PodHost, tmp_path: Path) -> None:
    over = threading.Event()
    over.set()
    with pytest.raises(NotStarted, match="did not connect"):
        host.launch(read_inputs(FakePlane(tmp_path).inputs), over)


@pytest.mark.parametrize("hello", [{}, {"pid": 2}, {"pid": "1"}, {"pid": None}])
def test_runner_that_is_not_the_first_process_is_refused(
    host: PodHost, hello: dict[str, Any]
) -> None:
    with pytest.raises(NotStarted, match="not 1"):
        host.check_isolation(hello, NEVER)


def test_nobody_may_listen_beside_the_shim(host: PodHost) -> None:
    """gVisor takes a second listener at another address when the first one allowed reuse."""
    with host.relay_listener() as relay:
        for listener in (host._probed, host._control, relay):
            for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                assert listener.getsockopt(socket.SOL_SOCKET, option) == 0
