"""Answers the kubelet's probe of the agent's container: the kill switch of a pod.

Yes until the end is ordered, then no; the kubelet kills the container for that, and asks no more
once it is gone. One thread does it all: the agent may have used up the pod's processes.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable

CALLERS = 64
HEAD_LIMIT = 8 << 10
CALLER_S = 2.0
"""How long a caller may take for its question."""
_TICK_S = 0.5
_WORDS = {200: "OK", 404: "Not Found", 503: "Service Unavailable"}


class Health:
    """path: a secret, since the agent can call, too."""

    def __init__(
        self,
        listener: socket.socket,
        path: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener, self._path, self._monotonic = listener, path.encode(), monotonic
        self._callers: dict[socket.socket, _Caller] = {}
        self._is_over = self._is_closed = False
        self._asked_at = self._ended_at = monotonic()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._thread.join()

    def end(self) -> None:
        """Answer no from now on. Callable from any thread, again and again."""
        if not self._is_over:
            self._ended_at = self._monotonic()
            self._is_over = True

    def since_end(self) -> float:
        """Return the seconds since the end was ordered."""
        return self._monotonic() - self._ended_at

    def quiet_s(self) -> float:
        """Return for how long nobody has heard the no: since the last question, or the order."""
        return self._monotonic() - max(self._asked_at, self._ended_at)

    def _serve(self) -> None:
        self._listener.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._is_closed:
                for key, _ in selector.select(_TICK_S):
                    if key.fileobj is self._listener:
                        self._accept(selector)
                    elif isinstance(key.data, _Caller):
                        self._listen_to(selector, key.data)
                self._drop_slow(selector)
            for caller in list(self._callers.values()):
                self._drop(selector, caller)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        if len(self._callers) >= CALLERS:
            # It may have been the kubelet, which only asks while the container lives.
            self._asked_at = self._monotonic()
            self._drop(selector, next(iter(self._callers.values())))
        caller = self._callers[sock] = _Caller(sock, self._monotonic() + CALLER_S)
        selector.register(sock, selectors.EVENT_READ, caller)

    def _listen_to(self, selector: selectors.BaseSelector, caller: _Caller) -> None:
        if caller.sock not in self._callers:
            return  # dropped for a newer one a moment ago
        with contextlib.suppress(OSError):
            data = caller.sock.recv(4096)
            caller.head += data
            if data and not caller.is_done:
                return
            if caller.is_done:
                caller.sock.send(self._answer(caller.path))
        self._drop(selector, caller)

    def _answer(self, path: bytes) -> bytes:
        status = 404
        if path == self._path:
            self._asked_at = self._monotonic()
            status = 503 if self._is_over else 200
        head = f"HTTP/1.1 {status} {_WORDS[status]}\r\ncontent-length: 0\r\nconnection: close"
        return head.encode() + b"\r\n\r\n"

    def _drop_slow(self, selector: selectors.BaseSelector) -> None:
        now = self._monotonic()
        for caller in [each for each in self._callers.values() if each.until < now]:
            self._drop(selector, caller)

    def _drop(self, selector: selectors.BaseSelector, caller: _Caller) -> None:
        del self._callers[caller.sock]
        selector.unregister(caller.sock)
        caller.sock.close()


class _Caller:
    def __init__(self, sock: socket.socket, until: float) -> None:
        self.sock, self.until, self.head = sock, until, b""

    @property
    def is_done(self) -> bool:
        return b"\r\n\r\n" in self.head or len(self.head) > HEAD_LIMIT

    @property
    def path(self) -> bytes:
        words = self.head.partition(b"\r\n")[0].split(b" ")
        return words[1] if len(words) == 3 and words[0] == b"GET" else b""
