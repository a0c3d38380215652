"""The keys that tokens and bootstrap secrets are made with: one signs, all of a ring are good.

They come from the operator's profile, where several machines serve planes, or from a file of the
state folder that is made at first use.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from fde_ray.model.errors import UserError
from fde_ray.model.planes import SigningKeyProfile, TokensProfile

KEY_FILE = "plane.key"
LEAST_BYTES = 32


class SigningKey:
    """32 secret bytes or more, with a name (`kid`)."""

    def __init__(self, kid: str, secret: bytes) -> None:
        if len(secret) < LEAST_BYTES:
            raise UserError(f"a signing key needs at least {LEAST_BYTES} bytes")
        self.kid, self.secret = kid, secret

    def __repr__(self) -> str:
        return f"SigningKey(kid={self.kid!r}, secret=***)"


class KeyRing:
    """At least one key; the first one signs."""

    def __init__(self, keys: Sequence[SigningKey]) -> None:
        self.current = keys[0]
        self._by_kid = {key.kid: key for key in keys}

    def __repr__(self) -> str:
        return f"KeyRing({list(self._by_kid)!r})"

    @property
    def all(self) -> tuple[SigningKey, ...]:
        return tuple(self._by_kid.values())

    def named(self, kid: object) -> SigningKey | None:
        return self._by_kid.get(kid) if isinstance(kid, str) else None


def load_keys(profile: TokensProfile, home: Path, environ: Mapping[str, str]) -> KeyRing:
    """Return the keys that the profile names, else the one of this state folder."""
    if not profile.keys:
        return KeyRing([load_signing_key(home)])
    return KeyRing([SigningKey(one.kid, _secret(one, environ)) for one in profile.keys])


def _secret(key: SigningKeyProfile, environ: Mapping[str, str]) -> bytes:
    name = key.secret_env or key.secret_file or ""
    try:
        if key.secret_env is not None:
            text = environ[key.secret_env]
        else:
            text = Path(name).expanduser().read_text(encoding="ascii")
        return bytes.fromhex(text.strip())
    except KeyError:
        raise UserError(f"tokens.keys {key.kid}: {name} is not set") from None
    except OSError as error:
        raise UserError(f"tokens.keys {key.kid}: cannot read {name}: {error.strerror}") from error
    except ValueError:
        raise UserError(
            f"tokens.keys {key.kid}: {name} must hold hex digits; make it by: openssl rand -hex 32"
        ) from None


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
