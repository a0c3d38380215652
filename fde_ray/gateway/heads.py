"""HTTP heads of bounded size: before one ends nobody knows who speaks, and it is kept in memory."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_BYTES = 64 * 1024
_TOO_LARGE = b"\r\n".join(
    (
        b"HTTP/1.1 431 Request Header Fields Too Large",
        b"content-length: 0",
        b"connection: close",
        b"\r\n",
    )
)


class BoundedHeads(HttpToolsProtocol):
    """Ends a connection whose head, or trailer, does not end."""

    _unread = 0
    """Bytes since the last head was whole, or the last piece of a body came."""

    def data_received(self, data: bytes) -> None:
        self._unread += len(data)
        super().data_received(data)
        if self._unread > MAX_HEAD_BYTES and not self.transport.is_closing():
            cycle: RequestResponseCycle | None = self.cycle
            if cycle is None or cycle.response_complete:
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._unread = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unread = 0
        super().on_body(body)
