"""Tokens of shims: the bootstrap secret, and short signed claims.

A shim proves itself once with a secret that only its own process holds, gets a token for one scope,
and renews it. Who may do what with a token is decided in `plane`, which also asks whether the
session is still the run's live one.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Any

import jwt
from pydantic import ValidationError

from fde_ray.model.base import Record
from fde_ray.model.clock import Clock
from fde_ray.model.errors import Refusal
from fde_ray.model.failures import Fault
from fde_ray.model.session import SessionRole
from fde_ray.model.states import Scope

from .signing import KeyRing, SigningKey

LIFETIME_S = 3600
MAX_TOKEN_CHARS = 8192
REMEMBERED = 4096


class TokenClaims(Record):
    """What a token says. `models`: the only models it may call.

    serial: counts the shims of this session; the greatest is good. nonce: tells shims of one serial
    apart, until one of them has started the agent.
    """

    sub: str
    run: str
    role: SessionRole
    scope: Scope
    models: tuple[str, ...]
    exp: int
    serial: int
    nonce: str


class TokenSigner:
    """Mints and reads tokens. Pure but for the clock."""

    def __init__(
        self, keys: KeyRing | SigningKey, clock: Clock, *, lifetime_s: float = LIFETIME_S
    ) -> None:
        self.lifetime_s = int(lifetime_s)
        self._keys = KeyRing([keys]) if isinstance(keys, SigningKey) else keys
        self._clock = clock
        # Reading a token costs more than all else in a small request; a shim sends the same one
        # for half an hour. Expiry is checked each time.
        self._known: dict[str, TokenClaims] = {}

    def __repr__(self) -> str:
        return f"TokenSigner({self._keys!r})"

    def bootstrap_secret(self, subject: str) -> str:
        return _bootstrap(self._keys.current, subject)

    def proves(self, subject: str, secret: str) -> bool:
        """Whether the secret is of this subject, under any key that is good."""
        given = secret.encode()
        return any(
            hmac.compare_digest(_bootstrap(key, subject).encode(), given) for key in self._keys.all
        )

    def mint(
        self,
        *,
        subject: str,
        run: str,
        role: SessionRole,
        scope: Scope,
        models: tuple[str, ...],
        serial: int,
        nonce: str,
    ) -> str:
        claims = TokenClaims(
            sub=subject,
            run=run,
            role=role,
            scope=scope,
            models=models,
            exp=int(self._clock.now()) + self.lifetime_s,
            serial=serial,
            nonce=nonce,
        )
        key = self._keys.current
        headers = {"kid": key.kid}
        token = jwt.encode(claims.jsonable(), key.secret, algorithm="HS256", headers=headers)
        return self._remember(token, claims)

    def renew(self, claims: TokenClaims) -> str:
        return self.mint(
            subject=claims.sub,
            run=claims.run,
            role=claims.role,
            scope=claims.scope,
            models=claims.models,
            serial=claims.serial,
            nonce=claims.nonce,
        )

    def verify(self, token: str) -> TokenClaims:
        """Return the claims; Refusal 401 says `token_invalid` or `token_expired`."""
        claims = self._known.get(token)
        if claims is None:
            claims = self._read(token)
            self._remember(token, claims)
        if claims.exp <= self._clock.now():
            raise Refusal(401, Fault.AGENT, "the token has expired", code="token_expired")
        return claims

    def _remember(self, token: str, claims: TokenClaims) -> str:
        if len(self._known) >= REMEMBERED:
            self._known.pop(next(iter(self._known)))
        self._known[token] = claims
        return token

    def _read(self, token: str) -> TokenClaims:
        try:
            if len(token) > MAX_TOKEN_CHARS:
                raise _invalid()
            key = self._keys.named(jwt.get_unverified_header(token).get("kid"))
            if key is None:
                raise _invalid()
            value: dict[str, Any] = jwt.decode(
                token,
                key.secret,
                algorithms=["HS256"],
                # The clock is injected, so that expiry is ours to check.
                options={"verify_exp": False, "require": ["sub", "exp"]},
            )
            return TokenClaims.model_validate(value)
        except (jwt.InvalidTokenError, ValidationError, ValueError) as error:
            raise _invalid() from error


def _bootstrap(key: SigningKey, subject: str) -> str:
    return hmac.new(key.secret, f"bootstrap:{subject}".encode(), sha256).hexdigest()


def _invalid() -> Refusal:
    return Refusal(401, Fault.AGENT, "the token is not valid", code="token_invalid")
