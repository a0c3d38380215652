"""What Ray is told by environment. It reads that when it is imported, so set it before."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from .leftovers import is_joined, ray_folder

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_ROTATION_MAX_BYTES": str(20 * 2**20),
    # Shims live on when their supervisor dies.
    "RAY_kill_child_processes_on_worker_exit": "false",
}


def set_environment(home: Path) -> None:
    """Tell Ray what this process and all that it starts need."""
    folder = None if is_joined(os.environ) else ray_folder(home)
    os.environ.update(settings(os.environ, folder))


def settings(environ: Mapping[str, str], folder: Path | None) -> dict[str, str]:
    """Return what Ray is told by environment; folder: of a local Ray, which gets its own token.

    The mode of authentication is always explicit: Ray's own default differs between its commands.
    """
    if folder is None:
        has_token = bool(environ.get("RAY_AUTH_TOKEN") or environ.get("RAY_AUTH_TOKEN_PATH"))
        mode = environ.get("RAY_AUTH_MODE") or ("token" if has_token else "disabled")
        return {"RAY_AUTH_MODE": mode, **_QUIET}
    token = _token(folder)
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), **_QUIET}


def _token(folder: Path) -> Path:
    """Return the file with the token of the local Ray, readable by us alone."""
    path = folder / "token"
    if not path.exists():
        fresh = folder / f"token.{os.getpid()}"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
        fresh.rename(path)
    return path
