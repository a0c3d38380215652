"""Tokens of shims: the signing key, the bootstrap secret, and short signed claims.

A shim proves itself once with a secret that only its own process holds, gets a token for one scope,
and renews it. Who may do what with a token is decided in `plane`, which also asks whether the
session is still the run's live one.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import jwt
from pydantic import ValidationError

from fde_ray.model.base import Record
from fde_ray.model.clock import Clock
from fde_ray.model.errors import Refusal, UserError
from fde_ray.model.failures import Fault
from fde_ray.model.states import Scope

LIFETIME_S = 3600
MAX_TOKEN_CHARS = 8192
REMEMBERED = 4096
KEY_FILE = "plane.key"


class SigningKey:
    """32 secret bytes with a name (`kid`)."""

    def __init__(self, kid: str, secret: bytes) -> None:
        if len(secret) < 32:
            raise UserError("a signing key needs at least 32 bytes")
        self.kid, self.secret = kid, secret

    def __repr__(self) -> str:
        return f"SigningKey(kid={self.kid!r}, secret=***)"


def load_signing_key(home: Path) -> SigningKey:
    """Return the key of this state folder; made at first use, mode 0600, never overwritten."""
    path = home / KEY_FILE
    home.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        _create_key(path)
    if path.stat().st_mode & 0o077:
        raise UserError(f"{path} must be readable by its owner only; run: chmod 600 {path}")
    try:
        document = json.loads(path.read_text(encoding="ascii"))
        return SigningKey(str(document["kid"]), bytes.fromhex(document["secret"]))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no signing key; move it away to get a new one") from error


def _create_key(path: Path) -> None:
    document = {"kid": secrets.token_hex(4), "secret": secrets.token_hex(32)}
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            json.dump(document, file)
        # A link never replaces: of two processes at first use, the later reads the earlier's key.
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink(missing_ok=True)


class TokenClaims(Record):
    """What a token says. `models`: the only models it may call."""

    sub: str
    run: str
    role: Literal["solve", "extract"]
    scope: Scope
    models: tuple[str, ...]
    exp: int
    serial: str


class TokenSigner:
    """Mints and reads tokens. Pure but for the clock."""

    def __init__(self, key: SigningKey, clock: Clock, *, lifetime_s: int = LIFETIME_S) -> None:
        self.lifetime_s = lifetime_s
        self._key, self._clock = key, clock
        # Reading a token costs more than all else in a small request; a shim sends the same one
        # for half an hour. Expiry is checked each time.
        self._known: dict[str, TokenClaims] = {}

    def __repr__(self) -> str:
        return f"TokenSigner({self._key!r})"

    def bootstrap_secret(self, subject: str) -> str:
        return self._hmac(f"bootstrap:{subject}")

    def proves(self, subject: str, secret: str) -> bool:
        return hmac.compare_digest(self.bootstrap_secret(subject).encode(), secret.encode())

    def serial(self, subject: str, scope: Scope, nonce: str) -> str:
        """Return the serial of a nonce: the same nonce gives the same serial."""
        return self._hmac(json.dumps(["serial", subject, scope.value, nonce]))[:24]

    def mint(
        self,
        *,
        subject: str,
        run: str,
        role: Literal["solve", "extract"],
        scope: Scope,
        models: tuple[str, ...],
        serial: str,
    ) -> str:
        claims = TokenClaims(
            sub=subject,
            run=run,
            role=role,
            scope=scope,
            models=models,
            exp=int(self._clock.now()) + self.lifetime_s,
            serial=serial,
        )
        headers = {"kid": self._key.kid}
        token = jwt.encode(claims.jsonable(), self._key.secret, algorithm="HS256", headers=headers)
        return self._remember(token, claims)

    def renew(self, claims: TokenClaims) -> str:
        return self.mint(
            subject=claims.sub,
            run=claims.run,
            role=claims.role,
            scope=claims.scope,
            models=claims.models,
            serial=claims.serial,
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
            if len(token) > MAX_TOKEN_CHARS or jwt.get_unverified_header(token).get("kid") != (
                self._key.kid
            ):
                raise _invalid()
            value: dict[str, Any] = jwt.decode(
                token,
                self._key.secret,
                algorithms=["HS256"],
                # The clock is injected, so that expiry is ours to check.
                options={"verify_exp": False, "require": ["sub", "exp"]},
            )
            return TokenClaims.model_validate(value)
        except (jwt.InvalidTokenError, ValidationError, ValueError) as error:
            raise _invalid() from error

    def _hmac(self, text: str) -> str:
        return hmac.new(self._key.secret, text.encode(), sha256).hexdigest()


def _invalid() -> Refusal:
    return Refusal(401, Fault.AGENT, "the token is not valid", code="token_invalid")
