"""Wake-up inside one process; callers poll as well, since other processes write too."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager


class Notifier:
    """Watch a topic first, read the store, then wait: no change falls in between."""

    def __init__(self) -> None:
        self._watchers: dict[Hashable, set[asyncio.Event]] = {}

    @contextmanager
    def watch(self, *topics: Hashable) -> Iterator[asyncio.Event]:
        """Yield an event that is set at each change of one of `topics`; the watcher clears it."""
        event = asyncio.Event()
        for topic in topics:
            self._watchers.setdefault(topic, set()).add(event)
        try:
            yield event
        finally:
            for topic in topics:
                watchers = self._watchers[topic]
                watchers.discard(event)
                if not watchers:
                    del self._watchers[topic]

    def notify(self, topics: Iterable[Hashable]) -> None:
        for topic in topics:
            for event in self._watchers.get(topic, ()):
                event.set()


async def woken(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for the event at most `timeout_s`, clear it, and say whether it came."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    event.clear()
    return True
