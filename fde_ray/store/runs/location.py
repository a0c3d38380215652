"""Where a run store is: plain data that may be handed to another process; it holds no secret."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

from fde_ray.model.errors import UserError
from fde_ray.model.stores import PostgresProfile

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

    @classmethod
    def chosen(cls, profile: PostgresProfile | None, file: Path) -> Self:
        """Return the place that a profile names; None = the file."""
        if profile is None:
            return cls(str(file))
        return cls(profile.url, profile.password_env, profile.password_file, profile.connections)

    def dialect(
        self, environ: Mapping[str, str] | None = None, *, patience_s: float | None = None
    ) -> Dialect:
        """environ: where `password_env` is looked up; None = this process. patience_s: how long a
        call waits for a store that is away or busy; None = as shipped."""
        waits = {} if patience_s is None else {"patience_s": patience_s}
        if not self.url.startswith(POSTGRESQL):
            return SqliteDialect(Path(self.url), **waits)
        from .dialects.postgresql import PostgresDialect  # noqa: PLC0415 - a laptop needs no driver

        where = os.environ if environ is None else environ
        return PostgresDialect(
            self.url,
            password=lambda: self._password(where),
            connections=self.connections,
            **waits,
        )

    def _password(self, environ: Mapping[str, str]) -> str | None:
        if self.password_env is not None:
            if (found := environ.get(self.password_env)) is None:
                raise UserError(f"{self.password_env}, the store's password, is not set.")
            return found
        if self.password_file is None:
            return None
        try:
            return Path(self.password_file).expanduser().read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"the file of the store's password, {self.password_file}, cannot be read."
            ) from error
