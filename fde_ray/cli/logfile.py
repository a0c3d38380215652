"""What the program logs goes into `<home>/fde-ray.log`, so that the terminal stays readable."""

from __future__ import annotations

import logging
import logging.handlers
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fde_ray.model.clock import utc
from fde_ray.model.wording import counted

from .output import note, safe

MAX_BYTES = 5_000_000
KEPT = 2
_STANDARD = set(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class LineFormatter(logging.Formatter):
    """One line per event: time, level, event, fields. A traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {k: v for k, v in record.__dict__.items() if k not in _STANDARD}
        said = " ".join([record.getMessage(), *(f"{k}={v}" for k, v in fields.items())])
        line = f"{utc(record.created)} {record.levelname.lower()} {record.name} {safe(said)}"
        if record.exc_info:
            line += "\n" + safe(self.formatException(record.exc_info), multiline=True)
        return line


class _Counting(logging.handlers.RotatingFileHandler):
    """Counts errors, so that the person hears of them."""

    error_count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.error_count += record.levelno >= logging.ERROR
        super().emit(record)


@contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """Log into `path` inside the block; say at its end whether there were errors.

    The file is made by the first line. Other libraries are heard from warnings on.
    """
    handler = _Counting(path, maxBytes=MAX_BYTES, backupCount=KEPT, delay=True, encoding="utf-8")
    handler.setFormatter(LineFormatter())
    root, own = logging.getLogger(), logging.getLogger("fde_ray")
    before = own.level
    root.addHandler(handler)
    own.setLevel(logging.INFO)
    try:
        yield
    finally:
        own.setLevel(before)
        root.removeHandler(handler)
        handler.close()
        if handler.error_count:
            note(f"note: {counted(handler.error_count, 'error')} logged in {path}")


@contextmanager
def logged_to_stderr() -> Iterator[None]:
    """Log to stderr inside the block, for processes whose output somebody else collects."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    root, own = logging.getLogger(), logging.getLogger("fde_ray")
    before = own.level
    root.addHandler(handler)
    own.setLevel(logging.INFO)
    try:
        yield
    finally:
        own.setLevel(before)
        root.removeHandler(handler)
