"""The agent's clock as the shim knows it: the plane's word, and our own count in between."""

from __future__ import annotations


class SolveClock:
    """Counts unpaused time down. All times are monotonic seconds, handed in."""

    def __init__(self, limit_s: float, pause_cap_s: float, now: float) -> None:
        self._remaining, self._pause_cap_s = limit_s, pause_cap_s
        self._heard_at = now
        self._is_paused = False
        self._is_away = False
        self._own_pause_s = 0.0

    def heard(self, now: float, remaining_s: float, paused: bool) -> None:
        """The plane answered; its count replaces ours."""
        if self._is_away:
            self._own_pause_s += now - self._heard_at
        self._remaining, self._is_paused, self._is_away = remaining_s, paused, False
        self._heard_at = now

    def lost(self) -> None:
        """The plane does not answer: the clock stands since it was last heard."""
        self._is_away = True

    @property
    def is_away(self) -> bool:
        """Whether the plane did not answer when it was last asked."""
        return self._is_away

    def remaining(self, now: float) -> float:
        if self._is_paused or self._is_away:
            return self._remaining
        return self._remaining - (now - self._heard_at)

    def is_paused_too_long(self, now: float) -> bool:
        """Whether outages that only we saw add up to more than the pause cap."""
        away = now - self._heard_at if self._is_away else 0.0
        return self._own_pause_s + away > self._pause_cap_s
