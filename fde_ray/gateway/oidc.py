"""Bearers of an identity provider: signed JSON web tokens, checked with its public keys.

Where the keys are stands in the operator's profile; no address is taken from a token.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import jwt

from fde_ray.model.clock import Clock
from fde_ray.model.errors import Refusal
from fde_ray.model.failures import Fault
from fde_ray.model.people import OidcProfile

from .people import Person, not_valid

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
"""Those with a public key: a shared one would let whoever checks also sign."""
KEPT_S = 3600.0
LEAST_BETWEEN_S = 30.0
"""Between two looks for a key that nobody knows."""
MAX_KEYS_BYTES = 1 << 20
LEEWAY_S = 60


class OidcDoor:
    """transport: another way onto the wire, for tests."""

    def __init__(
        self, profile: OidcProfile, clock: Clock, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._profile, self._clock = profile, clock
        self._keys = _Keys(profile, clock, transport)

    async def person(self, bearer: str) -> Person:
        claims = await self._claims(bearer)
        name = self._name(claims)
        if not self._is_allowed(name):
            raise Refusal(403, Fault.AGENT, "you are not on the list", code="not_allowed")
        # Nobody of the provider can pass for a user of ours, nor the other way round.
        return Person(f"oidc:{name}", "admin" if name in self._profile.admins else "researcher")

    async def _claims(self, bearer: str) -> dict[str, Any]:
        try:
            header = jwt.get_unverified_header(bearer)
            if header.get("alg") not in ALGORITHMS:
                raise not_valid("the bearer is signed in a way that is not taken")
            key = await self._keys.named(header.get("kid"))
            claims: dict[str, Any] = jwt.decode(
                bearer,
                key.key,
                algorithms=[header["alg"]],
                audience=self._profile.audience,
                issuer=self._profile.issuer,
                # The clock is injected, so that times are ours to check.
                options={
                    "require": ["exp", "iss", "aud"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise not_valid() from error
        self._check_times(claims)
        return claims

    def _check_times(self, claims: dict[str, Any]) -> None:
        now = self._clock.now()
        ends, begins = claims["exp"], claims.get("nbf", 0)
        if not all(isinstance(at, (int, float)) for at in (ends, begins)):
            raise not_valid()
        if ends + LEEWAY_S <= now:
            raise Refusal(401, Fault.AGENT, "the bearer has expired", code="token_expired")
        if begins - LEEWAY_S > now:
            raise not_valid("the bearer is not good yet")

    def _name(self, claims: dict[str, Any]) -> str:
        claim = self._profile.name_claim
        name = claims.get(claim)
        if not isinstance(name, str) or not name or len(name) > 200 or not name.isprintable():
            raise not_valid(f"the bearer has no {claim}")
        if claim == "email" and claims.get("email_verified") is not True:
            raise not_valid("the bearer's e-mail address is not verified")
        return name

    def _is_allowed(self, name: str) -> bool:
        allowed = (*self._profile.allowed, *self._profile.admins)
        if not self._profile.allowed:
            return True
        return any(name == one or (one.startswith("@") and name.endswith(one)) for one in allowed)


class _Keys:
    def __init__(
        self, profile: OidcProfile, clock: Clock, transport: httpx.AsyncBaseTransport | None
    ) -> None:
        self._profile, self._clock, self._transport = profile, clock, transport
        self._known: dict[str | None, jwt.PyJWK] = {}
        self._read_at = self._tried_at = float("-inf")
        # One look for all who wait for a key.
        self._lock = asyncio.Lock()

    async def named(self, kid: str | None) -> jwt.PyJWK:
        async with self._lock:
            now = self._clock.now()
            is_old = now - self._read_at >= KEPT_S
            if (is_old or kid not in self._known) and now - self._tried_at >= LEAST_BETWEEN_S:
                self._tried_at = now
                await self._read()
        found = self._known.get(kid)
        if found is None:
            raise not_valid("the bearer is signed with a key that is not known")
        return found

    async def _read(self) -> None:
        try:
            text = await self._text()
            keys = jwt.PyJWKSet.from_dict(json.loads(text)).keys
        except (OSError, httpx.HTTPError, ValueError, jwt.PyJWTError, AttributeError) as error:
            if self._known:
                return  # what was known stays good while the provider is away
            reason = "the identity provider's keys cannot be read"
            raise Refusal(
                503, Fault.OURS, reason, code="no_keys", retry_after_s=LEAST_BETWEEN_S
            ) from error
        self._known = {key.key_id: key for key in keys if key.key_type != "oct"}
        self._read_at = self._clock.now()

    async def _text(self) -> bytes:
        if self._profile.jwks_file is not None:
            return await asyncio.to_thread(_file, self._profile.jwks_file)
        assert self._profile.jwks_url is not None
        async with httpx.AsyncClient(
            transport=self._transport, timeout=10, follow_redirects=False, trust_env=False
        ) as client:
            reply = await client.get(self._profile.jwks_url)
            reply.raise_for_status()
            if len(reply.content) > MAX_KEYS_BYTES:
                raise ValueError("too many keys")
            return reply.content


def _file(path: str) -> bytes:
    return Path(path).expanduser().read_bytes()
