"""The keys of an S3 store: read late from where the profile says, and never shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fde_ray.model.errors import UserError
from fde_ray.model.objects import S3Settings

MAX_KEY_BYTES = 16_384


def read_keys(settings: S3Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the keys as boto3 wants them; empty = its own chain finds them.

    UserError when what the settings name is missing or no key.
    """
    named = {
        "aws_access_key_id": (settings.access_key_env, settings.access_key_file),
        "aws_secret_access_key": (settings.secret_key_env, settings.secret_key_file),
        "aws_session_token": (settings.session_token_env, settings.session_token_file),
    }
    return {
        argument: _key(settings, environ, env, file)
        for argument, (env, file) in named.items()
        if env or file
    }


def _key(
    settings: S3Settings, environ: Mapping[str, str], env: str | None, file: str | None
) -> str:
    if env is not None:
        value, missing = environ.get(env, ""), f"set the environment variable {env}"
    else:
        value, missing = _from_file(str(file)), f"there is no usable key in the file {file}"
    if not value or len(value) > MAX_KEY_BYTES or not (value.isascii() and value.isprintable()):
        raise UserError(f"S3 {settings.place}: {missing}")
    return value


def _from_file(path: str) -> str:
    """Return what the file holds; "" when it cannot be read or is no text."""
    try:
        with Path(path).expanduser().open("rb") as file:
            return file.read(MAX_KEY_BYTES + 1).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
