"""How late the event loop runs: what one blocking call costs all others of its process."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

log = logging.getLogger(__name__)

EVERY_S = 0.5
ALARM_S = 0.25
KEPT = 120


class LoopLag:
    """`worst_s` is the longest delay of the last minute."""

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=KEPT)

    @property
    def worst_s(self) -> float:
        return max(self._seen, default=0.0)

    async def watch(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            late = loop.time() - due
            self._seen.append(late)
            if late > ALARM_S:
                log.warning("loop_late", extra={"seconds": round(late, 3)})
