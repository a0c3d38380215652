"""The shim's heartbeat: tells the plane what is held, hears how much time is left and when to stop.

Our own count of time bridges outages; it ends a session only when the plane never does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from .clock import SolveClock
from .limits import Usage
from .mailbox import Mailbox
from .plane import Plane
from .relay import Calls
from .wire import Refused, Unreachable

LAST_TRIES_S = 5.0
"""How long a plane is still waited for when its outages are over the pause cap."""
OVERDUE_S = 10.0


class Heart:
    """give_up: set when no plane is worth waiting for any more."""

    def __init__(
        self,
        plane: Plane,
        mail: Mailbox,
        clock: SolveClock,
        *,
        calls: Calls,
        usage: Callable[[], Usage | None],
        give_up: threading.Event,
        every_s: float,
    ) -> None:
        self._plane, self._mail, self._clock = plane, mail, clock
        self._calls, self._usage, self._give_up = calls, usage, give_up
        self._every_s = every_s
        self._overdue_since: float | None = None
        self._capped_since: float | None = None

    def run(self, closing: threading.Event) -> None:
        wait = 0.0
        while not closing.wait(wait):
            self._beat()
            now = time.monotonic()
            self._check_pauses(now)
            wait = self._check_time(now)

    def _beat(self) -> None:
        try:
            self._plane.renew_if_due()
            reply = self._plane.call("POST", "/v1/heartbeat", self._body(), timeout=30.0)
            remaining = float(reply["remaining_s"])
            self._clock.heard(time.monotonic(), remaining, bool(reply.get("paused")))
            if reply.get("state") == "stop":
                self._mail.stop(str(reply.get("reason") or "finished"))
        except Refused as error:
            self._clock.lost()
            if error.is_final:
                self._mail.stop("superseded", detail=str(error))
        except (Unreachable, KeyError, TypeError, ValueError):
            self._clock.lost()

    def _body(self) -> dict[str, Any]:
        usage = self._usage()
        counted = {"cpu_s": usage.cpu_s, "rss_bytes": usage.rss_bytes} if usage else {}
        return {"held": self._calls.held(), **counted}

    def _check_pauses(self, now: float) -> None:
        is_too_long = self._clock.is_paused_too_long(now)
        if is_too_long:
            self._mail.stop("pause_cap")
        if not (self._clock.is_away and is_too_long):
            self._capped_since = None
            return
        self._capped_since = self._capped_since or now
        if now - self._capped_since > LAST_TRIES_S:
            self._give_up.set()

    def _check_time(self, now: float) -> float:
        """Return the wait until the next beat."""
        remaining = self._clock.remaining(now)
        if remaining > 0:
            self._overdue_since = None
            return min(self._every_s, remaining + 0.05)
        self._overdue_since = self._overdue_since or now
        if now - self._overdue_since > OVERDUE_S:
            self._mail.stop("own_time_limit")
        return min(self._every_s, 1.0)
