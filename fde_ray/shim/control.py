"""The shim's end of the one control connection: a JSON object a line, both ways."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from typing import Any

LINE_LIMIT = 8 << 20
PIECES_LIMIT = 1_200_000
"""More than any text of a turn can hold; as values they would take a hundred megabytes."""


class ControlLine:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._stream = control.makefile("rb", buffering=65536)
        self._is_closed = False

    def tell(self, message: dict[str, Any]) -> None:
        """Send one line down; a runner that is gone shows up as a closed connection instead."""
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(message).encode() + b"\n")

    def hear(self) -> dict[str, Any] | None:
        """Return the next message of the runner; {} for a line that is none, None at the end."""
        try:
            line = self._stream.readline(LINE_LIMIT)
        except (OSError, ValueError):
            return None
        if not line:
            return None
        if len(line) == LINE_LIMIT and not line.endswith(b"\n"):
            return None  # no runner of ours writes such a line
        if sum(map(line.count, (b"[", b"{", b","))) > PIECES_LIMIT:
            return {}
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def hang_up(self) -> None:
        """Say no more; a runner that is well ends at once. Callable from any thread."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)

    def is_closed(self, within_s: float) -> bool:
        """Throw away what still comes, for so long; return whether the other end is closed.

        Needs no thread of its own, and another one may be in `hear`: both see the end.
        """
        end = time.monotonic() + within_s
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        while not self._is_closed:
            left = end - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                break
            try:
                self._is_closed = not self._control.recv(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue  # the other thread was faster
            except OSError:
                self._is_closed = True
        return self._is_closed
