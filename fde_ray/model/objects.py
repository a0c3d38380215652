"""Where objects lie: what an operator says about it. Keys are named, never held."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from .base import Record
from .units import Duration, Size, parse_duration, parse_size

ChecksumMode = Literal["when_supported", "when_required"]
MIN_PART = parse_size("5MiB")
"""The smallest part, but the last, that S3 takes."""
_PREFIX = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}(?:/[A-Za-z0-9_][A-Za-z0-9._-]{0,99}){0,4}")


class FolderSettings(Record):
    kind: Literal["folder"] = "folder"
    path: str = Field(min_length=1)
    """A folder of this machine, or one that all machines mount at this place."""
    fsync: bool = False
    """True = a created object survives a power cut."""


class S3Settings(Record):
    kind: Literal["s3"] = "s3"
    bucket: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")
    prefix: str = ""
    """What all keys of this store begin with, without the slash at the end."""
    endpoint_url: str | None = None
    """Root of an S3-compatible store, such as https://minio.example:9000; None = AWS."""
    region: str | None = None
    """None = what the environment says; us-east-1 beside an `endpoint_url`."""
    path_style: bool | None = None
    """Whether the bucket stands in the path; None = only beside an `endpoint_url`."""
    checksums: ChecksumMode | None = None
    """`when_supported` sends SHA-256 headers, `when_required` the older Content-MD5.

    None = `when_supported` on AWS, `when_required` beside an `endpoint_url`: some compatible stores
    refuse the newer headers, or keep their framing inside the object.
    """
    access_key_env: str | None = None
    secret_key_env: str | None = None
    session_token_env: str | None = None
    """Environment variables that hold the keys; None = see the files."""
    access_key_file: str | None = None
    secret_key_file: str | None = None
    session_token_file: str | None = None
    """Files that hold the keys, such as mounted secrets; all None = AWS's own chain (role, ...)."""
    connect_timeout: Duration = parse_duration("10s")
    read_timeout: Duration = parse_duration("90s")
    """Silence on a connection; above a minute, since slow stores answer after one."""
    retry_for: Duration = parse_duration("3m")
    """How long one call is repeated while the store is busy or away."""
    max_connections: int = Field(default=24, ge=1, le=1000)
    """Connections of this process, and threads that use them."""
    multipart_from: Size = parse_size("16MiB")
    """Objects larger than this go up in parts."""
    part_size: Size = parse_size("8MiB")
    """Small enough that a part takes less than the 15 minutes for which a signature is good."""
    abandoned_after: Duration = parse_duration("1d")
    """Uploads in parts that began longer ago are given up; longer than any upload may take."""

    @field_validator("prefix")
    @classmethod
    def _prefix_is_plain(cls, value: str) -> str:
        if value and not _PREFIX.fullmatch(value):
            raise ValueError("must be up to five plain names, without a slash at either end")
        return value

    @field_validator("endpoint_url")
    @classmethod
    def _endpoint_holds_no_secret(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("must be an http or https address")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("must hold neither user, password, query nor fragment")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        access, secret, token = (
            _one_source(name, getattr(self, f"{name}_env"), getattr(self, f"{name}_file"))
            for name in ("access_key", "secret_key", "session_token")
        )
        if access != secret:
            raise ValueError("access_key and secret_key go together")
        if token and not access:
            raise ValueError("session_token needs access_key")
        if self.part_size < MIN_PART:
            raise ValueError("part_size must be at least 5MiB")
        return self

    @property
    def checksum_mode(self) -> ChecksumMode:
        return self.checksums or ("when_required" if self.endpoint_url else "when_supported")

    @property
    def place(self) -> str:
        """Return the store as people name it: bucket and host."""
        host = urlsplit(self.endpoint_url).netloc if self.endpoint_url else "AWS"
        return f"bucket {self.bucket} at {host}"

    def __repr__(self) -> str:
        return f"S3Settings({self.place}, prefix={self.prefix!r})"

    __str__ = __repr__


def _one_source(name: str, env: str | None, file: str | None) -> bool:
    """Tell whether the key is named; ValueError when it is named twice."""
    if env is not None and file is not None:
        raise ValueError(f"give {name}_env or {name}_file, not both")
    return env is not None or file is not None


ObjectsProfile = Annotated[S3Settings | FolderSettings, Field(discriminator="kind")]
