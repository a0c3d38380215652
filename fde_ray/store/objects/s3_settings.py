"""What an operator says about the S3 store; keys are named by environment variable, never held."""

from __future__ import annotations

from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from fde_ray.model.base import Record
from fde_ray.model.units import Duration, Size, parse_duration, parse_size
from fde_ray.store.errors import KeyInvalid

from .keys import checked_key

ChecksumMode = Literal["when_supported", "when_required"]
MIN_PART = parse_size("5MiB")
"""The smallest part, but the last, that S3 takes."""


class S3Settings(Record):
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
    """Environment variables that hold the keys; None = AWS's own chain (role, profile, ...)."""
    session_token_env: str | None = None
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

    @field_validator("prefix")
    @classmethod
    def _prefix_is_a_key(cls, value: str) -> str:
        if value:
            try:
                checked_key(value)
            except KeyInvalid as error:
                raise ValueError(f"{error.reason}") from None
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
        if (self.access_key_env is None) != (self.secret_key_env is None):
            raise ValueError("access_key_env and secret_key_env go together")
        if self.session_token_env and not self.access_key_env:
            raise ValueError("session_token_env needs access_key_env")
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
