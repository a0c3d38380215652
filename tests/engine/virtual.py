"""An event loop whose time jumps to the next timer as soon as nothing else can happen.

Work in threads counts as something that can happen, so that a run is the same on a slow machine.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
STUCK_S = 20.0
"""Real seconds without any event, after which a test is called stuck."""
BEGAN_AT = 1_800_000_000.0


class _Selector(selectors.DefaultSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is not None and not self.loop.busy:
            self.loop.at += timeout
            return []
        ready = super().select(STUCK_S)
        if not ready:
            raise RuntimeError("nothing happens any more")
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.at, self.busy = 0.0, 0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.at

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        future = super().run_in_executor(executor, func, *args)
        self.busy += 1
        future.add_done_callback(self._less_busy)
        return future

    def _less_busy(self, _done: Any) -> None:
        self.busy -= 1


class LoopClock:
    """Wall time that goes with the loop that it was made in; threads may read it, too."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now(self) -> float:
        return BEGAN_AT + self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def played(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())
