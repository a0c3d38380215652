"""Live progress on stderr: one line that redraws itself on a terminal, sparse lines in a log."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from .output import is_terminal

if TYPE_CHECKING:
    from fde_ray.engine.campaign import Progress

LOG_EVERY_S = 5.0
_SHOWN = ("queued", "provisioning", "solving", "collecting", "extracting", "scoring", "judging")


class ProgressLine:
    """`with ProgressLine() as line:` hands out `line.show`. quiet: print nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet, self._live = quiet, is_terminal()
        self._last, self._printed_at = "", 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live and self._last and not self._quiet:
            sys.stderr.write("\n")

    def show(self, progress: Progress) -> None:
        text = described(progress)
        if self._quiet or text == self._last:
            return
        if self._live:
            sys.stderr.write(f"\r\x1b[2K{text[: _width() - 1]}")
            sys.stderr.flush()
        elif time.monotonic() - self._printed_at >= LOG_EVERY_S:
            sys.stderr.write(text + "\n")
            self._printed_at = time.monotonic()
        else:
            return
        self._last = text


def described(progress: Progress) -> str:
    """Return the moment as one line."""
    phases = " ".join(
        f"{phase.value} {count}"
        for phase, count in progress.phases.items()
        if phase.value in _SHOWN and count
    )
    bad = sum(n for p, n in progress.phases.items() if p.value in ("quarantined", "cancelled"))
    cost = "cost unknown" if progress.cost_nanousd is None else dollars(progress.cost_nanousd)
    parts = [
        f"{progress.finished}/{progress.planned} runs",
        f"{progress.graded} graded",
        phases,
        f"{bad} set aside" if bad else "",
        f"{progress.questions} questions answered",
        cost + (" (offline)" if progress.offline else ""),
    ]
    return " · ".join(part for part in parts if part)


def dollars(nanousd: int) -> str:
    return f"${nanousd / 1e9:.4f}" if nanousd else "$0"


def _width() -> int:
    import shutil

    return shutil.get_terminal_size((100, 24)).columns
