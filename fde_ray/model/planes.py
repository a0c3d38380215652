"""Planes that run as processes of their own, and the keys that their tokens are signed with.

Both belong to the operator's profile. Secrets are named, never held.
"""

from __future__ import annotations

from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from .base import Record
from .units import Duration, parse_duration


def _address(value: str) -> str:
    path = value.removeprefix("unix:")
    if path != value:
        if not path.startswith("/"):
            raise ValueError("write unix: and a full path")
        return value
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        port, parts = None, urlsplit("")
    if parts.scheme != "http" or not parts.hostname or port is None or parts.path not in ("", "/"):
        raise ValueError("write http://host:port, or unix: and the full path of a socket")
    return value.rstrip("/")


Address = Annotated[str, AfterValidator(_address)]
"""Where shims reach a plane: `http://host:port` or `unix:/path`."""


class PlanesProfile(Record):
    """Where planes are served by `fde-ray serve`; None = by the process that runs sweeps."""

    run: Address | None = None
    """What solving runs reach: a run-plane, or what shares calls out among several."""
    ingest: Address | None = None
    """Where they send their archives; None = to the run-plane."""
    grade: Address | None = None
    """What extraction tries reach."""

    @property
    def are_elsewhere(self) -> bool:
        """Whether sessions report to another process than the one that runs sweeps."""
        return self.run is not None or self.grade is not None


class SigningKeyProfile(Record):
    """A key of at least 32 bytes, in hex."""

    kid: str = Field(pattern=r"^[A-Za-z0-9._-]{1,40}$")
    secret_env: str | None = None
    secret_file: str | None = None
    """A variable, or a file such as a mounted secret."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.secret_env is None) == (self.secret_file is None):
            raise ValueError("name the key by secret_env or by secret_file")
        return self


class TokensProfile(Record):
    keys: tuple[SigningKeyProfile, ...] = Field(default=(), max_length=8)
    """The first one signs, all of them are good. None given = a key file in the state folder.

    To change keys without breaking a live run: add the new one as the last, restart all; move it to
    the front, restart all; take the old one out when no attempt lives that was started under it.
    """
    lifetime: Duration = parse_duration("1h")
    """Of one token; shims renew theirs at six tenths of it."""

    @model_validator(mode="after")
    def _kids_differ(self) -> Self:
        if len({key.kid for key in self.keys}) != len(self.keys):
            raise ValueError("each key needs a kid of its own")
        if self.lifetime < 60:
            raise ValueError("a token lives for a minute or longer")
        return self
