"""How the control-plane knows people: what an operator says about it. No secret is held."""

from __future__ import annotations

from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from .base import Record

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class OidcProfile(Record):
    """Bearers of an identity provider, beside the tokens of `fde-ray user add`."""

    issuer: str = Field(min_length=1)
    """Must equal the `iss` of a bearer."""
    audience: str = Field(min_length=1)
    """Must be in its `aud`."""
    jwks_url: str | None = None
    jwks_file: str | None = None
    """Where the provider's public keys are: an address, or a file."""
    name_claim: str = "email"
    """Which claim names a person; an e-mail address must be a verified one."""
    allowed: tuple[str, ...] = ()
    """Names, or endings such as `@example.org`; empty = everybody for whom the issuer vouches."""
    admins: tuple[str, ...] = ()
    """Names of those who may change the sweeps of others."""

    @field_validator("jwks_url")
    @classmethod
    def _is_safe(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK):
            return value
        raise ValueError("must begin with https://")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.jwks_url is None) == (self.jwks_file is None):
            raise ValueError("give jwks_url or jwks_file")
        return self


class PeopleProfile(Record):
    oidc: OidcProfile | None = None
    """None = only users of `fde-ray user add`."""
