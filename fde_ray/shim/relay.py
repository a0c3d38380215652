"""The one base URL of a sandbox: passes model calls on, adds the token, waits out outages.

A request of the agent is held while the plane is away or a provider is down, with the same call id
at every try; streams are kept open with comments meanwhile. The agent's own headers go no further.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, TypeVar

from .bodies import TooLarge, Unreadable, body_size, read_body
from .plane import FIRST_DELAY_S, LAST_DELAY_S, Plane, next_delay
from .room import Room
from .routes import EVALUATE, Route, error_body, error_event, route_of
from .wire import Exchange, Refused, Unreachable

CHAT_LIMIT = 32 << 20
DRAIN_LIMIT = 64 << 20
CONNECTIONS = 64
NOTES = 10_000
CALL_TIMEOUT_S = 1800.0
COMMENT_EVERY_S = 10.0
REFUSED = b"event: refused\n"
HEAD_LIMIT = 64 << 10
T = TypeVar("T")


class Calls:
    """Which calls are held for a fault that is not the agent's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the two sets
        self._open: set[str] = set()
        self._held: set[str] = set()

    @contextlib.contextmanager
    def opened(self, call_id: str) -> Iterator[None]:
        with self._lock:
            self._open.add(call_id)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(call_id)
                self._held.discard(call_id)

    def hold(self, call_id: str, held: bool) -> None:
        with self._lock:
            (self._held.add if held else self._held.discard)(call_id)

    def held(self) -> list[str]:
        with self._lock:
            return sorted(self._held)[:CONNECTIONS]


class Relay(ThreadingMixIn, TCPServer):
    """Serves a socket that listens already, UNIX or TCP."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        listener: socket.socket,
        plane: Plane,
        over: threading.Event,
        *,
        evaluate: bool,
        evaluate_limit: int,
        room_bytes: int,
        log: Callable[..., None],
    ) -> None:
        """room_bytes: for all bodies at once; no limit of one body may be greater."""
        self.plane, self.over, self.log = plane, over, log
        self.evaluate, self.evaluate_limit = evaluate, evaluate_limit
        self.calls = Calls()
        self.room = Room(room_bytes)
        self._notes_left = NOTES
        self._slots = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener

    def note_held(self, call_id: str, cause: str) -> None:
        """Note it in the journal, which an agent must not be able to fill."""
        if self._notes_left > 0:
            self._notes_left -= 1
            self.log("call_held", call=call_id, cause=cause)

    def get_request(self) -> tuple[socket.socket, Any]:
        request, caller = self.socket.accept()
        if request.family != socket.AF_UNIX:
            # Head and body of a reply go out apart: the second must not wait for the first.
            request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return request, caller

    def process_request(self, request: Any, client_address: Any) -> None:
        self._slots.acquire()
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is the agent's affair."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Relay
    timeout = 3600.0

    def address_string(self) -> str:
        return "agent"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        route = self._route()
        if route is None:
            self._forbid()
        else:
            self._pass_on("GET", route, b"")

    def do_POST(self) -> None:
        route = self._route()
        if route is None:
            self._forbid()
            return
        limit = self.server.evaluate_limit if route.path == EVALUATE else CHAT_LIMIT
        try:
            with self.server.room.share(body_size(self.headers, limit)) as share:
                body = read_body(self.headers, self.rfile, limit)
                share.keep(len(body))
                self._pass_on("POST", route, body)
        except TooLarge:
            self._refuse(413, "too_large", "the request body is too large")
        except Unreadable:
            self._refuse(400, "bad_request", "the request body cannot be read")

    def _forbid(self) -> None:
        self._refuse(403, "forbidden", "this address answers model calls only")

    do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = _forbid  # noqa: N815

    def _route(self) -> Route | None:
        is_evaluation = self.command == "POST" and self.path.partition("?")[0] == EVALUATE
        if is_evaluation:
            return Route(EVALUATE, "chat") if self.server.evaluate else None
        return route_of(self.command, self.path)

    def _refuse(self, status: int, code: str, reason: str) -> None:
        error = {"fault": "agent", "code": code, "reason": reason, "message": reason}
        route = self._route()
        dialect = "chat" if route is None else route.dialect
        # A body that is too large stays unread in part: the connection cannot be used again.
        self.close_connection = True
        self._drain()
        self._reply(status, "application/json", error_body(dialect, status, error))

    def _drain(self) -> None:
        """Read what the agent is sending, so that it gets to hear the refusal."""
        size = self.headers.get("content-length", "0")
        left = min(int(size), DRAIN_LIMIT) if size.isdigit() else 0
        while left > 0 and (data := self.rfile.read(min(left, 65536))):
            left -= len(data)

    def _reply(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        if self.close_connection:
            self.send_header("connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    # --- passing on

    def _pass_on(self, method: str, route: Route, body: bytes) -> None:
        call = _Call(self.server, method, route, body, route.headers(self.headers))
        with self.server.calls.opened(call.id):
            if method == "POST" and route.wants_stream(body):
                _StreamedReply(self, call).run()
                return
            try:
                status, kind, data = call.until_served(_whole_reply, lambda: None)
            except Refused as refusal:
                self._reply(refusal.status, "application/json", _words(refusal, route))
            except _Over:
                self.close_connection = True
            else:
                self._reply(status, kind, data)


class _Over(Exception):
    """Solving ended while the call was held."""


class _Call:
    """One call of the agent, tried with one id until it is served or finally refused."""

    def __init__(
        self, relay: Relay, method: str, route: Route, body: bytes, headers: dict[str, str]
    ) -> None:
        self._relay, self._method, self.route, self._body = relay, method, route, body
        self._headers = headers
        self.id = uuid.uuid4().hex

    def until_served(self, use: Callable[[Exchange], T], while_held: Callable[[], None]) -> T:
        """Return use(reply); raise Refused if final, _Over when solving ended first."""
        delay = FIRST_DELAY_S
        while not self._relay.over.is_set():
            refusal: Refused | None = None
            try:
                with self._exchange() as reply:
                    self._relay.calls.hold(self.id, held=False)
                    return use(reply)
            except Refused as error:
                # Its frames hold the body, and hold each other if a name of ours stays with it.
                if error.is_final:
                    raise error.with_traceback(None) from None
                refusal = error.with_traceback(None)
            except Unreachable:
                pass
            self._relay.calls.hold(self.id, held=True)
            self._relay.note_held(self.id, refusal.code if refusal else "away")
            self._wait(next_delay(delay, refusal), while_held)
            delay = min(delay * 2, LAST_DELAY_S)
        raise _Over

    def _wait(self, seconds: float, while_held: Callable[[], None]) -> None:
        while seconds > 0 and not self._relay.over.is_set():
            while_held()
            self._relay.over.wait(min(seconds, COMMENT_EVERY_S))
            seconds -= COMMENT_EVERY_S

    def _exchange(self) -> Exchange:
        return self._relay.plane.exchange(
            self._method,
            self.route.path,
            self._body if self._method == "POST" else None,
            content_type="application/gzip" if self.route.path == EVALUATE else "application/json",
            call_id=self.id,
            headers=self._headers,
            timeout=CALL_TIMEOUT_S,
        )


class _StreamedReply:
    """Server-sent events to the agent; a stream that broke is continued where it broke."""

    def __init__(self, handler: _Handler, call: _Call) -> None:
        self._handler, self._call = handler, call
        self._began = False
        self._sent_bytes = 0
        self._sent_hash = hashlib.sha256()

    def run(self) -> None:
        self._handler.close_connection = True
        try:
            self._call.until_served(self._copy, self._comment)
        except Refused as refusal:
            self._fail(refusal.status, _words(refusal, self._call.route))
            return
        except _Over:
            if not self._began:
                return
        if self._began:
            self._write_chunk(b"")

    def _begin(self, content_type: str) -> None:
        if self._began:
            return
        self._began = True
        self._handler.send_response(200)
        self._handler.send_header("content-type", content_type)
        self._handler.send_header("cache-control", "no-store")
        self._handler.send_header("transfer-encoding", "chunked")
        self._handler.send_header("connection", "close")
        self._handler.end_headers()

    def _comment(self) -> None:
        self._begin("text/event-stream")
        # A comment is allowed between events only; a broken stream may have stopped inside one.
        if not self._sent_bytes:
            self._write_chunk(self._call.route.comment)

    def _copy(self, reply: Exchange) -> None:
        self._begin(reply.content_type)
        for data in self._unsent(self._events(reply)):
            self._sent_bytes += len(data)
            self._sent_hash.update(data)
            self._write_chunk(data)

    def _events(self, reply: Exchange) -> Iterator[bytes]:
        """Yield the reply without the comments at its head; Refused when it says only that."""
        head = b""
        while data := reply.read_some():
            head += data
            while head.startswith(b":") and b"\n\n" in head:
                head = head.partition(b"\n\n")[2]
                self._comment()
            if not _may_be_refusal(head):
                break
        if head.startswith(REFUSED):
            raise Refused.of(503, head[len(REFUSED) :].removeprefix(b"data: "))
        if head:
            yield head
        while data := reply.read_some():
            yield data

    def _unsent(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield what follows the bytes that the agent has already, which must come again."""
        left, again = self._sent_bytes, hashlib.sha256()
        for data in pieces:
            known, fresh = data[:left], data[left:]
            again.update(known)
            left -= len(known)
            if known and not left:
                self._check(again)
            if fresh:
                yield fresh
        if left:
            self._check(again)

    def _check(self, again: Any) -> None:
        if again.digest() != self._sent_hash.digest():
            raise Refused(502, "agent", "stream_broken", "the stream broke; ask again")

    def _fail(self, status: int, body: bytes) -> None:
        if not self._began:
            self._handler._reply(status, "application/json", body)
            return
        self._write_chunk(error_event(self._call.route.dialect, body))
        self._write_chunk(b"")

    def _write_chunk(self, data: bytes) -> None:
        self._handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


def _may_be_refusal(head: bytes) -> bool:
    """Whether more must be read to tell a refusal, which may follow comments, from a stream."""
    if len(head) > HEAD_LIMIT:
        return False
    if head.startswith(REFUSED):
        return not head.endswith(b"\n\n")
    return head.startswith(b":") or REFUSED.startswith(head)


def _whole_reply(reply: Exchange) -> tuple[int, str, bytes]:
    return reply.status, reply.content_type, reply.read()


def _words(refusal: Refused, route: Route) -> bytes:
    """Return a refusal as the agent hears it: as the plane said it, if it did."""
    if refusal.said:
        return refusal.said
    error = {
        "fault": refusal.fault,
        "code": refusal.code,
        "reason": refusal.reason,
        "message": refusal.reason,
    }
    return error_body(route.dialect, refusal.status, error)
