"""Live progress on stderr: one line that redraws itself on a terminal, sparse lines in a log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from fde_ray.model.wording import counted

if TYPE_CHECKING:
    from fde_ray.engine.campaign import Progress

_SHOWN = ("queued", "provisioning", "solving", "collecting", "extracting", "scoring", "judging")
_LOG_EVERY_S = ((60.0, 5.0), (600.0, 30.0), (float("inf"), 60.0))
"""(until this age, at most one line in so many seconds): a sweep of days keeps a short log."""


class ProgressLine:
    """`with ProgressLine() as line:` hands out `line.show`; the last moment is always printed."""

    def __init__(
        self, *, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._now = stream or sys.stderr, now
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._began, self._printed_at = now(), float("-inf")
        self._text = self._printed = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._text != self._printed:
            self._print()
        self.end()

    def end(self) -> None:
        """Let what follows begin on a line of its own."""
        if self._live and self._printed:
            self._stream.write("\n")
            self._stream.flush()

    def show(self, progress: Progress) -> None:
        self.tell(described(progress))

    def tell(self, text: str) -> None:
        """Show a moment that is in words already."""
        self._text = text
        if self._live or (self._text != self._printed and self._is_due()):
            self._print()

    def _is_due(self) -> bool:
        age = self._now() - self._began
        every = next(every for until, every in _LOG_EVERY_S if age < until)
        return self._now() - self._printed_at >= every

    def _print(self) -> None:
        line = f"{clock_text(self._now() - self._began)}  {self._text}"
        if self._live:
            self._stream.write(f"\r\x1b[2K{line[: _width() - 1]}")
        else:
            self._stream.write(line + "\n")
        self._stream.flush()
        self._printed, self._printed_at = self._text, self._now()


def described(progress: Progress) -> str:
    """Return the moment as one line."""
    phases = " ".join(
        f"{name} {progress.phases[phase]}"
        for name, phase in ((phase.value, phase) for phase in sorted(progress.phases, key=_order))
        if name in _SHOWN and progress.phases[phase]
    )
    ends = {phase.value: count for phase, count in progress.phases.items() if count}
    cost = "cost unknown" if progress.cost_nanousd is None else dollars(progress.cost_nanousd)
    parts = [
        f"{progress.graded}/{counted(progress.planned, 'run')} graded",
        phases,
        f"to grade {progress.to_grade}" if progress.to_grade else "",
        f"cancelled {ends['cancelled']}" if "cancelled" in ends else "",
        f"{ends['quarantined']} set aside" if "quarantined" in ends else "",
        *(f"{count} held: {cause.value}" for cause, count in sorted(progress.held.items())),
        f"{counted(progress.rounds, 'round')} answered",
        cost + (" (offline)" if progress.offline else ""),
        *progress.notices[:1],
    ]
    return " · ".join(part for part in parts if part)


def clock_text(seconds: float) -> str:
    """Return 75 as 1:15 and 3661 as 1:01:01."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def dollars(nanousd: int) -> str:
    return f"${nanousd / 1e9:.4f}" if nanousd else "$0"


def _order(phase: object) -> int:
    value = getattr(phase, "value", "")
    return _SHOWN.index(value) if value in _SHOWN else len(_SHOWN)


def _width() -> int:
    import shutil

    return shutil.get_terminal_size((100, 24)).columns
