"""How many calls a second this process allows itself: no limit until the store says "slow down"."""

from __future__ import annotations

import threading

FLOOR = 1.0
"""Calls a second that always go out, so that the end of the trouble is noticed."""
LEAST_PEAK = 20.0
"""What a process counts as its rate before the trouble at least: an idle one may soon be busy."""
WINDOW_S = 1.0
"""One cut and one rise at most in this time: calls already under way say the same thing again."""
LONGEST_WAIT_S = 2.0
"""Those who wait look again after this, since the rate may have risen."""
CUT = 0.5
RISE = 0.1
"""Part of the rate before the trouble that comes back each second."""


class Pace:
    """Additive increase, multiplicative decrease, shared by all threads and loops of a process."""

    def __init__(self, began_at: float) -> None:
        # Guards all below: several event loops may share one pace.
        self._lock = threading.Lock()
        self._rate: float | None = None
        self._peak = 0.0
        self._filled_at = self._cut_at = self._risen_at = self._window_at = began_at
        self._calls = self._calls_before = 0
        self._tokens = 0.0

    @property
    def rate(self) -> float | None:
        """Calls a second; None = no limit."""
        return self._rate

    def wait_s(self, now: float, waiting: int) -> float:
        """Take a call and return 0, or return how long to wait before asking again.

        waiting: how many callers wait already.
        """
        with self._lock:
            if self._rate is not None:
                self._tokens = min(self._rate, self._tokens + (now - self._filled_at) * self._rate)
                self._filled_at = now
                if self._tokens < 1:
                    return min(LONGEST_WAIT_S, max(1, waiting) / self._rate)
                self._tokens -= 1
            self._count(now)
            return 0.0

    def slowed(self, now: float) -> None:
        """The store asked to slow down."""
        with self._lock:
            if self._rate is not None and now - self._cut_at < WINDOW_S:
                return
            if self._rate is None:
                self._rate = self._peak = float(max(self._calls, self._calls_before, LEAST_PEAK))
                self._tokens, self._filled_at = 0.0, now
            self._rate = max(FLOOR, self._rate * CUT)
            self._cut_at = self._risen_at = now

    def passed(self, now: float) -> None:
        """A call went through."""
        with self._lock:
            if self._rate is None or now - self._risen_at < WINDOW_S:
                return
            self._rate += max(FLOOR, self._peak * RISE)
            self._risen_at = now
            if self._rate > 2 * self._peak:
                self._rate = None

    def _count(self, now: float) -> None:
        if now - self._window_at >= WINDOW_S:
            fresh = now - self._window_at < 2 * WINDOW_S
            self._calls_before, self._calls = (self._calls if fresh else 0), 0
            self._window_at = now
        self._calls += 1
