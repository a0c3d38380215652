"""Where the threads of a shim leave word for its main loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Letter:
    """kind: turn, exit, closed (the runner's word) or stop (ours, with a reason)."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)


class Mailbox:
    """Letters in order; a stop goes first and stays. Claims wait outside when too many are in."""

    def __init__(self, room: int = 2) -> None:
        self._room = room
        self._claims: deque[Letter] = deque()
        self._stop: Letter | None = None
        self._changed = threading.Condition()
        self.over = threading.Event()
        """Set by the first stop; what is held or polled ends then."""
        self.on_stop: Callable[[], None] = lambda: None
        """Called once, by whoever stops: the main loop may be waiting for the plane."""

    def claim(self, letter: Letter) -> None:
        """Leave a letter of the runner; blocks while the mailbox is full."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._claims) < self._room or self._stop is not None)
            self._claims.append(letter)
            self._changed.notify_all()

    def stop(self, reason: str, **fields: Any) -> None:
        with self._changed:
            if self._stop is not None:
                return
            self._stop = Letter("stop", {"reason": reason, **fields})
            self._changed.notify_all()
        self.over.set()
        self.on_stop()

    def next(self) -> Letter:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._claims) or self._stop is not None)
            if self._stop is not None:
                return self._stop
            letter = self._claims.popleft()
            self._changed.notify_all()
            return letter
