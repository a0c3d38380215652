"""Where a run store is: plain data that may be handed to another process; it holds no secret."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from fde_ray.model.errors import UserError

from .dialects import Dialect
from .dialects.sqlite import SqliteDialect

POSTGRESQL = ("postgresql://", "postgres://")


class StoreLocation(NamedTuple):
    url: str
    """The path of a file, or postgresql://user@host:port/database without a password."""
    password_env: str | None = None
    password_file: str | None = None
    connections: int = 4
    """How many one process opens to a server, beside the one that keeps its leases."""

    def dialect(self) -> Dialect:
        if not self.url.startswith(POSTGRESQL):
            return SqliteDialect(Path(self.url))
        from .dialects.postgresql import PostgresDialect  # noqa: PLC0415 - a laptop needs no driver

        return PostgresDialect(self.url, password=self._password, connections=self.connections)

    def _password(self) -> str | None:
        if self.password_env is not None:
            if (found := os.environ.get(self.password_env)) is None:
                raise UserError(f"the store's password variable {self.password_env} is not set.")
            return found
        if self.password_file is None:
            return None
        try:
            return Path(self.password_file).expanduser().read_text(encoding="utf-8").strip("\n")
        except OSError as error:
            raise UserError(
                f"the store's password file {self.password_file} cannot be read: {error.strerror}."
            ) from error
