"""Requests of bounded slowness, and heads of bounded size: before one ends nobody knows who speaks,
and it is kept in memory. How large a body may be is checked where it is read (`requests`).

What comes in one piece, as nearly all does, costs no timer.
"""

from __future__ import annotations

from asyncio import BaseTransport, TimerHandle

from pydantic_core import to_json
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from fde_ray.model.errors import Refusal
from fde_ray.model.failures import Fault

from .envelopes import headers_of
from .faults import error_json
from .pace import Pace, Progress

MAX_HEAD_BYTES = 64 * 1024
HEAD_S = 30.0
"""For a whole head, and for the first byte of a new connection. Between two requests the server
itself closes a connection that is silent for 5 s."""
LOOK_S = 5.0
"""Between two looks at a body that is awaited."""


def _response(status: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    every = {**headers, "content-length": str(len(body)), "connection": "close"}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in every.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _slow_body() -> bytes:
    reason = "the body did not come in time"
    refusal = Refusal(408, Fault.OURS, reason, code="body_slow", retry_after_s=1.0)
    headers = {**headers_of(refusal), "content-type": "application/json"}
    return _response("408 Request Timeout", headers, to_json(error_json(refusal)))


_LARGE_HEAD = _response("431 Request Header Fields Too Large", {})
_SLOW_HEAD = _response("408 Request Timeout", {})
_SLOW_BODY = _slow_body()


class BoundedRequests(HttpToolsProtocol):
    """Ends a connection whose head, trailer or body does not end."""

    head_s, look_s, pace = HEAD_S, LOOK_S, Pace()
    _unread = 0
    """Bytes since the last head was whole, or the last piece of a body came."""
    _is_in_head = False
    _size = 0
    """Of the body that is coming."""
    _progress = Progress()
    _timer: TimerHandle | None = None
    """Runs while a head or a body is awaited."""

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._awaited()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unread > MAX_HEAD_BYTES:
            self._end(_LARGE_HEAD if self._is_idle else b"")
        elif self._timer is None:
            if self._is_idle:
                self._await_head()
            elif self.cycle.more_body:
                self._progress = Progress(self._size)
                self._timer = self.loop.call_later(self.look_s, self._look)

    def on_message_begin(self) -> None:
        self._is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._unread, self._size, self._is_in_head = 0, 0, False
        self._awaited()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        self._size += len(body)
        super().on_body(body)

    @property
    def _is_idle(self) -> bool:
        """Whether no request is being served; the rest of a body may still be on its way."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _await_head(self) -> None:
        self._timer = self.loop.call_later(self.head_s, self._head_is_late)

    def _awaited(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_is_late(self) -> None:
        self._timer = None
        self._end(_SLOW_HEAD if self._is_in_head else b"")

    def _look(self) -> None:
        """Look how far the body is."""
        self._timer = None
        if self._is_idle:
            self._await_head()  # who has had a reply does not go on with the body for ever
            return
        if not self.cycle.more_body:
            return
        is_read = not (self.flow.read_paused or self.cycle.waiting_for_100_continue)
        self._progress = self._progress.later(self._size, self.look_s, is_read=is_read)
        if self._progress.is_too_slow(self.pace):
            self._end(b"" if self.cycle.response_started else _SLOW_BODY)
        else:
            self._timer = self.loop.call_later(self.look_s, self._look)

    def _end(self, last_words: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(last_words)
            self.transport.close()
