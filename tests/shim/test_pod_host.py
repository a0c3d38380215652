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

from fde_ray.shim import pod_host
from fde_ray.shim.control import LINE_LIMIT, ControlLine
from fde_ray.shim.gate import GateSite
from fde_ray.shim.health import Health
from fde_ray.shim.hosts import NotStarted
from fde_ray.shim.inputs import read_inputs
from fde_ray.shim.limits import ClaimedMeter, Usage
from fde_ray.shim.plane import Plane
from fde_ray.shim.pod_host import PodHost, PodLaunched
from fde_ray.shim.pod_site import PodSite
from fde_ray.shim.walls import usage_message
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


def test_kubelet_may_ask_by_either_family(host: PodHost) -> None:
    port = host._probed.getsockname()[1]
    for address in ("127.0.0.1", "::1"):
        with socket.create_connection((address, port), timeout=5.0) as asked:
            asked.sendall(f"GET {HEALTH_PATH} HTTP/1.1\r\n\r\n".encode())
            assert asked.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("address", ["", "127.0.0.1", "::1"])
def test_nobody_takes_the_kubelets_questions_at_another_address(
    host: PodHost, address: str
) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as rival:
        rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            rival.bind((address, host._probed.getsockname()[1]))


def test_family_that_the_kernel_has_not_is_done_without() -> None:
    unknown = 12  # DECnet, gone from every kernel
    assert pod_host._bound(unknown, "", 0) is None


# --- what its agent uses


def test_word_of_the_runner_is_its_usage_and_no_message(
    pair: tuple[socket.socket, socket.socket], health: Health
) -> None:
    shim, runner = pair
    one = launched(shim, health)
    meter = ClaimedMeter(1.0, 1000)
    one.on_usage = meter.claim
    assert meter.usage() is None, "unknown is not zero"
    runner.sendall(b'{"type": "usage", "cpu_s": 0.0, "rss_bytes": 7}\n{"type": "turn"}\n')
    assert one.hear() == {"type": "turn"}
    assert meter.usage() == Usage(0.0, 7, 0)


def test_usage_is_never_more_than_the_pod_may_have() -> None:
    now = [100.0]
    meter = ClaimedMeter(0.5, 1000, monotonic=lambda: now[0])
    now[0] += 20
    meter.claim({"cpu_s": 8.5, "rss_bytes": 10})
    assert meter.usage() == Usage(8.5, 10, 0)
    meter.claim({"cpu_s": 1e9, "rss_bytes": 10**15})
    assert meter.usage() == Usage(10.0, 1000, 0)
    meter.claim({"cpu_s": 1, "rss_bytes": 5})
    assert meter.usage() == Usage(10.0, 5, 0), "time that was used stays used"


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"cpu_s": "1", "rss_bytes": 1},
        {"cpu_s": True, "rss_bytes": 1},
        {"cpu_s": float("nan"), "rss_bytes": 1},
        {"cpu_s": float("inf"), "rss_bytes": 1},
        {"cpu_s": -1, "rss_bytes": 1},
        {"cpu_s": 10**400, "rss_bytes": 1},
        {"cpu_s": 1.0},
        {"cpu_s": 1.0, "rss_bytes": None},
        {"cpu_s": [], "rss_bytes": {}},
    ],
    ids=lambda odd: str(odd)[:40],
)
def test_usage_that_is_no_number_says_nothing(odd: dict[str, Any]) -> None:
    meter = ClaimedMeter(1.0, 1000)
    meter.claim(odd)
    assert meter.usage() is None


def test_own_processes_have_used_time_and_memory() -> None:
    first = usage_message()
    assert first["type"] == "usage"
    assert first["rss_bytes"] > 0
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    assert usage_message()["cpu_s"] > 0


def test_nobody_may_listen_beside_the_shim(host: PodHost) -> None:
    """gVisor takes a second listener at another address when the first one allowed reuse."""
    with host.relay_listener() as relay:
        for listener in (host._probed, host._control, relay):
            for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                assert listener.getsockopt(socket.SOL_SOCKET, option) == 0
