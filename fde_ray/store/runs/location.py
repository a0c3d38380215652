"""Where a run store is: plain data that may be handed to another process."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from .dialects import Dialect
from .dialects.sqlite import SqliteDialect


class StoreLocation(NamedTuple):
    url: str
    """The path of a file."""

    def dialect(self) -> Dialect:
        return SqliteDialect(Path(self.url))
