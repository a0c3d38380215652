"""Ends the process at once when a person gives up while Ray starts.

Ray sits for seconds in code of its own that hears no signal, takes SIGTERM over for itself, and is
slow to let go of what it has half started. Nothing is lost by an abrupt end: no member works yet,
and truth lies elsewhere.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from .leftovers import ray_folder, reap

GivenUp = Callable[[], int]
"""Says the last words of the process, and returns its exit code."""


class Starting:
    """`with Starting(home, given_up) as starting:` until `starting.over()`. Main thread only.

    SIGINT or SIGTERM: the last words are said, what Ray has started on this machine is killed, and
    the process ends. given_up None: signals do what they did before.
    """

    is_ours = False
    """Whether this process has the lock on the Ray of the folder."""

    def __init__(self, home: Path, given_up: GivenUp | None) -> None:
        self._folder, self._given_up = ray_folder(home), given_up
        self._watcher: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._given_up is not None:
            # Others may point descriptor 2 elsewhere meanwhile.
            self._stderr = os.dup(2)
            self._heard, self._told = os.pipe()
            os.set_blocking(self._told, False)
            # The interpreter writes here from its signal handler, whatever the main thread does.
            self._before = signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)
            self._watcher = threading.Thread(target=self._watch, name="starting", daemon=True)
            self._watcher.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.over()

    def over(self) -> None:
        """Let signals do again what they did before; does not return once one was heard."""
        if self._watcher is None:
            return
        signal.set_wakeup_fd(self._before)
        os.close(self._told)
        self._watcher.join()
        os.close(self._heard)
        os.close(self._stderr)
        self._watcher = None

    def _watch(self) -> None:
        while numbers := os.read(self._heard, 64):
            if signal.SIGINT in numbers or signal.SIGTERM in numbers:
                self._end()

    def _end(self) -> None:
        assert self._given_up is not None
        code = 1
        try:
            os.dup2(self._stderr, 2)
            code = self._given_up()
            if self.is_ours:
                reap(self._folder)
        finally:
            os._exit(code)
