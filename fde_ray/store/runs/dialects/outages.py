"""What the links of a process know together of a server that is away."""

from __future__ import annotations

import math
import threading
import time

TOLD_AFTER_S = 2.0
"""Shorter ones are nobody's concern."""


class Outage:
    """`longest_delay_s`: how long a link waits between two tries."""

    def __init__(self, longest_delay_s: float) -> None:
        self._longest_delay_s = longest_delay_s
        # Protects both times.
        self._lock = threading.Lock()
        self._since: float | None = None
        self._tried_at = -math.inf
        self._is_told = False

    def began(self) -> float:
        """Note a failure now; return when the outage began."""
        with self._lock:
            self._tried_at = time.monotonic()
            if self._since is None:
                self._since, self._is_told = self._tried_at, False
            return self._since

    def ended(self) -> None:
        if self._since is not None:
            with self._lock:
                self._since = None

    def is_to_be_told(self, after_s: float = TOLD_AFTER_S) -> bool:
        """Whether it lasts long enough to speak of it; True once an outage."""
        with self._lock:
            if self._since is None or self._is_told:
                return False
            self._is_told = time.monotonic() - self._since >= after_s
            return self._is_told

    def gives_up(self, patience_s: float) -> bool:
        """Whether a new call need not try: another one did a moment ago, after all patience."""
        with self._lock:
            now = time.monotonic()
            return (
                self._since is not None
                and now - self._since > patience_s
                and now - self._tried_at < self._longest_delay_s
            )
