"""Where run rows lie: what an operator says about it. A password is named, never held."""

from __future__ import annotations

from typing import Annotated, Any, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator

from .base import Record


class PostgresProfile(Record):
    url: str
    """postgresql://user@host:port/database, with libpq's own parameters after a `?`."""
    password_env: str | None = None
    password_file: str | None = None
    """A variable, or a file such as a mounted secret, that holds the password; both None =
    PGPASSWORD, ~/.pgpass, or a server that wants none."""
    connections: int = Field(default=4, ge=1, le=64)
    """How many each process opens, beside the one that keeps its leases. Runs, planes and pools are
    processes: the server's `max_connections` must hold all of them, or a pooler between."""

    @field_validator("url")
    @classmethod
    def _url_holds_no_secret(cls, value: str) -> str:
        try:
            parts = urlsplit(value)
            options = parse_qs(parts.query)
        except ValueError:
            raise ValueError("must be postgresql://user@host:port/database") from None
        if parts.scheme not in {"postgresql", "postgres"}:
            raise ValueError("must begin with postgresql://; without a store, a file is used")
        if parts.password is not None or "password" in options:
            raise ValueError("must hold no password; name it by password_env or password_file")
        return value

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.password_env is not None and self.password_file is not None:
            raise ValueError("give password_env or password_file, not both")
        return self


def _spelled_out(value: Any) -> Any:
    return {"url": value} if isinstance(value, str) else value


StoreProfile = Annotated[PostgresProfile, BeforeValidator(_spelled_out)]
"""Also its URL alone."""
