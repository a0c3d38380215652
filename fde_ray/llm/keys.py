"""API keys: read late from where the profile says, and never shown."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fde_ray.model.errors import ProviderError
from fde_ray.model.failures import FailureKind
from fde_ray.model.profile import Endpoint

MAX_KEY_BYTES = 16_384


class ApiKey:
    """A secret; only `reveal` gives it away."""

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def masked(self, text: str) -> str:
        """Return `text` without the secret in it."""
        return text.replace(self._value, "***") if self._value else text

    def __repr__(self) -> str:
        return "ApiKey(***)"

    __str__ = __repr__


def read_key(endpoint: Endpoint, environ: Mapping[str, str] | None = None) -> ApiKey | None:
    """Return the endpoint's key; None when it names none.

    Read at each call, so that a key can be changed while a sweep runs. ProviderError
    (rejected) when what it names is missing or no key.
    """
    if endpoint.api_key_file is not None:
        return _checked(_from_file(Path(endpoint.api_key_file).expanduser()), endpoint.api_key_file)
    if endpoint.api_key_env is not None:
        found = (os.environ if environ is None else environ).get(endpoint.api_key_env, "")
        return _checked(found, f"${endpoint.api_key_env}")
    return None


def _from_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_KEY_BYTES + 1)
        return data.decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _no_key(f"the key file {path} cannot be read") from error


def _checked(value: str, where: str) -> ApiKey:
    if not value or len(value) > MAX_KEY_BYTES or not (value.isascii() and value.isprintable()):
        raise _no_key(f"there is no usable key in {where}")
    return ApiKey(value)


def _no_key(detail: str) -> ProviderError:
    return ProviderError(detail, kind=FailureKind.PROVIDER_REJECTED)
