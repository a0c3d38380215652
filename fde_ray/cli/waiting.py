"""Says what a command waits for when a store does not answer."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .output import note

EVENT = "store_awaited"
"""What stores log of a wait that lasts; with their `place`, and `until` when they wait."""
TOLD_EVERY_S = 60.0


class _Telling(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._told: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg != EVENT:
            return
        place, now = record.__dict__["place"], time.monotonic()
        if now - self._told.get(place, -TOLD_EVERY_S) < TOLD_EVERY_S:
            return
        self._told[place] = now
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[2K")  # a progress line may be there
        at = time.strftime("%H:%M:%S", time.localtime(record.__dict__["until"]))
        note(f"waiting for {place} to answer, until {at}; Ctrl-C gives up at once")


@contextmanager
def waits_told() -> Iterator[None]:
    """Tell of every wait for a store inside the block."""
    telling, logger = _Telling(), logging.getLogger("fde_ray.store")
    logger.addHandler(telling)
    try:
        yield
    finally:
        logger.removeHandler(telling)
