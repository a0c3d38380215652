"""The relay alone, between an agent's connection and a stand-in for the plane."""

from __future__ import annotations

import gc
import json
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from fde_ray.shim.plane import Plane
from fde_ray.shim.relay import Relay
from fde_ray.shim.room import Room
from fde_ray.shim.sockets import connect_unix, listen_unix
from fde_ray.shim.wire import Exchange, Refused
from tests.sandbox.fake_plane import SECRET, FakePlane, refusal, says


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakePlane]:
    with FakePlane(tmp_path).running() as fake:
        yield fake


@pytest.fixture
def over() -> threading.Event:
    return threading.Event()


@pytest.fixture
def address(fake: FakePlane, tmp_path: Path, over: threading.Event) -> Iterator[str]:
    plane = Plane(f"unix:{fake.socket}", "run.1", SECRET)
    plane.open("solve")
    path = tmp_path / "relay.sock"
    listener = listen_unix(str(path))
    relay = Relay(
        listener,
        plane,
        over,
        evaluate=True,
        evaluate_limit=1000,
        room_bytes=64 << 20,
        log=lambda *_, **__: None,
    )
    thread = threading.Thread(target=lambda: relay.serve_forever(poll_interval=0.01))
    thread.start()
    yield f"unix:{path}"
    over.set()
    relay.shutdown()
    thread.join()
    relay.server_close()


def ask(address: str, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    with Exchange(address, method, path, body, {"x-other": "1"}, 20.0) as reply:
        return reply.status, reply.read()


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/commit"), ("GET", "/v1/chat/completions"), ("PUT", "/v1/models"), ("HEAD", "/")],
)
def test_other_routes_are_forbidden(address: str, method: str, path: str) -> None:
    assert ask(address, method, path)[0] == 403


def test_too_large_body_is_refused_unread(address: str) -> None:
    assert ask(address, "POST", "/v1/evaluate", b"x" * 1001)[0] == 413


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\xff\xfe garbage\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET " + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    ],
    ids=["noise", "negative", "no-number", "bad-chunk", "long-line"],
)
def test_broken_request_is_answered_or_dropped(address: str, raw: bytes) -> None:
    sock = connect_unix(address.removeprefix("unix:"), 10.0)
    with sock:
        sock.sendall(raw)
        sock.shutdown(socket.SHUT_WR)
        reply = b"".join(iter(lambda: sock.recv(65536), b""))
    assert b"HTTP/1.1 2" not in reply
    assert ask(address, "GET", "/v1/models")[0] == 200


def test_chunked_body_arrives_whole(address: str, fake: FakePlane) -> None:
    parts = [b'{"model": "off', b'line/x"}']
    with Exchange(
        address,
        "POST",
        "/v1/chat/completions",
        iter(parts),
        {"transfer-encoding": "chunked"},
        20.0,
    ) as reply:
        assert reply.status == 200
    assert fake.chats == [{"model": "offline/x"}]


def test_stream_is_kept_open_with_comments_while_it_is_held(address: str, fake: FakePlane) -> None:
    fake.model = [b'data: {"x": 1}\n\ndata: [DONE]\n\n']  # type: ignore[list-item]
    left = [2]

    def before(_method: str, route: str, _scope: str) -> object:
        left[0] -= 1
        return refusal(503, "provider") if left[0] >= 0 else None

    fake.before = before  # type: ignore[assignment]
    status, data = ask(address, "POST", "/v1/chat/completions", b'{"stream": true}')
    assert status == 200
    assert data.startswith(b": waiting\n\n")
    assert data.endswith(b'data: {"x": 1}\n\ndata: [DONE]\n\n')
    assert len(fake.call_ids) == 1


CHUNKS = b'data: {"x": 1}\n\ndata: [DONE]\n\n'
SAID_NO = (
    b'event: refused\ndata: {"error": {"fault": "%s", "code": "c", "retry_after_s": 0.01}}\n\n'
)


def test_comments_of_the_plane_go_on_to_the_agent(address: str, fake: FakePlane) -> None:
    fake.model = [b": waiting\n\n: waiting\n\n" + CHUNKS]  # type: ignore[list-item]
    _, data = ask(address, "POST", "/v1/chat/completions", b'{"stream": true}')
    assert data == b": waiting\n\n: waiting\n\n" + CHUNKS


@pytest.mark.parametrize("fault", [b"ours", b"provider"])
def test_a_stream_that_is_refused_after_comments_is_held(
    address: str, fake: FakePlane, fault: bytes
) -> None:
    refused = [b": waiting\n\n" + SAID_NO % fault]
    fake.before = lambda *_: refused.pop() if refused else None  # type: ignore[assignment]
    fake.model = [b": waiting\n\n" + CHUNKS]  # type: ignore[list-item]
    status, data = ask(address, "POST", "/v1/chat/completions", b'{"stream": true}')
    assert status == 200
    assert data.endswith(b": waiting\n\n" + CHUNKS)
    assert b"refused" not in data
    assert len(fake.call_ids) == 1


def test_a_final_refusal_after_comments_tells_the_agent(address: str, fake: FakePlane) -> None:
    fake.model = [b": waiting\n\n" + SAID_NO % b"budget"]  # type: ignore[list-item]
    _, data = ask(address, "POST", "/v1/chat/completions", b'{"stream": true}')
    error = json.loads(data.rpartition(b"data: ")[2])["error"]
    assert (error["fault"], error["code"]) == ("budget", "c")


@pytest.mark.parametrize(
    "odd",
    [b": never ends", b"event: ref", b"event: other\ndata: 1\n\n", b"", b":" + b"x" * 70_000],
    ids=["comment", "half", "other", "empty", "long"],
)
def test_an_odd_head_of_a_stream_is_passed_on(address: str, fake: FakePlane, odd: bytes) -> None:
    fake.model = [odd]  # type: ignore[list-item]
    assert ask(address, "POST", "/v1/chat/completions", b'{"stream": true}') == (200, odd)


def test_refused_stream_tells_the_agent(address: str, fake: FakePlane) -> None:
    fake.before = lambda *_: refusal(403, "budget", "spent")
    status, data = ask(address, "POST", "/v1/chat/completions", b'{"stream": true}')
    assert status == 403
    assert json.loads(data)["error"]["code"] == "spent"


def test_held_call_ends_when_solving_is_over(
    address: str, fake: FakePlane, over: threading.Event
) -> None:
    fake.before = lambda *_: refusal(503, "ours")
    threading.Timer(0.3, over.set).start()
    began = time.monotonic()
    with pytest.raises(Exception, match="RemoteDisconnected"):
        ask(address, "POST", "/v1/chat/completions", b"{}")
    assert time.monotonic() - began < 5


def test_plane_that_was_away_is_asked_again(address: str, fake: FakePlane) -> None:
    fake.model = [says("back")]
    fake.close()
    threading.Timer(0.4, fake.open).start()
    status, data = ask(address, "POST", "/v1/chat/completions", b"{}")
    assert status == 200
    assert b"back" in data


@pytest.mark.parametrize(
    ("body", "fault", "final"),
    [
        (b'{"error": {"fault": "agent", "code": "c", "reason": "r"}}', "agent", True),
        (b'{"error": {"fault": "budget", "retry_after_s": 2}}', "budget", True),
        (b'{"error": {"fault": "martian"}}', "ours", False),
        (b'{"error": "text"}', "ours", False),
        (b"<html>bad gateway", "ours", False),
        (b"\xff", "ours", False),
        (b"[]", "ours", False),
        (b"", "ours", False),
    ],
)
def test_every_refusal_is_read(body: bytes, fault: str, final: bool) -> None:
    refused = Refused.of(502, body)
    assert (refused.fault, refused.is_final) == (fault, final)


@pytest.mark.parametrize(
    ("path", "comment"),
    [
        ("/v1/messages", b": waiting\n\n"),
        ("/v1/responses", b": waiting\n\n"),
        ("/v1beta/models/x:streamGenerateContent?alt=sse", b"\n"),
    ],
)
def test_every_dialects_stream_is_held_with_what_its_clients_can_read(
    address: str, fake: FakePlane, path: str, comment: bytes
) -> None:
    left = [1]

    def before(_method: str, route: str, _scope: str) -> object:
        left[0] -= 1
        return refusal(503, "provider") if left[0] >= 0 else (200, CHUNKS)

    fake.before = before  # type: ignore[assignment]
    status, data = ask(address, "POST", path, b'{"stream": true}')
    assert (status, data.lstrip(comment)) == (200, CHUNKS.lstrip(comment))
    assert data.startswith(comment)


def test_a_final_refusal_reaches_the_agent_in_the_planes_own_words(
    address: str, fake: FakePlane
) -> None:
    said = {"type": "error", "error": {"type": "billing_error", "fault": "budget", "code": "c"}}
    fake.before = lambda *_: (402, said)  # type: ignore[assignment]
    status, data = ask(address, "POST", "/v1/messages", b"{}")
    assert (status, json.loads(data)) == (402, said)


def test_bodies_together_take_no_more_memory_than_there_is_room(
    address: str, fake: FakePlane
) -> None:
    """Those without room wait; none is refused, and none is lost."""
    fake.model = [says("yes")]
    body = b'{"model": "offline/x", "pad": "%s"}' % (b"x" * (17 << 20))
    answers: list[int] = []
    askers = [
        threading.Thread(
            target=lambda: answers.append(ask(address, "POST", "/v1/chat/completions", body)[0])
        )
        for _ in range(4)
    ]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(30.0)
    assert answers == [200] * 4


def test_share_of_the_room_waits_for_what_others_give_back() -> None:
    room = Room(100)
    with room.share(100) as first:
        waiter = threading.Thread(target=lambda: room.take(60))
        waiter.start()
        waiter.join(0.05)
        assert waiter.is_alive()
        first.keep(40)
        waiter.join(5.0)
        assert not waiter.is_alive()
    room.take(40)


def test_refused_call_leaves_nothing_of_its_body_in_memory(address: str, fake: FakePlane) -> None:
    fake.before = lambda _, route, __: refusal(413, "agent") if "responses" in route else None
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(3):
            assert ask(address, "POST", "/v1/responses", bytes(8 << 20))[0] == 413
        end = time.monotonic() + 5.0
        while tracemalloc.get_traced_memory()[0] > 8 << 20 and time.monotonic() < end:
            time.sleep(0.01)
        assert tracemalloc.get_traced_memory()[0] < 8 << 20
    finally:
        tracemalloc.stop()
        gc.enable()
