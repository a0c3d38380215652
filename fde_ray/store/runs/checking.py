"""Whether a run store can be used: for people who ask before they start."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from fde_ray.model.errors import UserError

from .location import StoreLocation
from .migrations import MIGRATIONS, versions
from .transaction import Transaction

PATIENCE_S = 5.0
"""Somebody looks on."""


async def checked_store(location: StoreLocation, environ: Mapping[str, str] | None = None) -> str:
    """Return where it is and its schema; it changes nothing. UserError or StoreError says what
    fails."""
    return await asyncio.to_thread(_checked, location, environ)


def _checked(location: StoreLocation, environ: Mapping[str, str] | None) -> str:
    dialect = location.dialect(environ, patience_s=PATIENCE_S)
    if not dialect.exists():
        return f"{dialect.place} (made at the first use)"

    def query(t: Transaction) -> tuple[int, int]:
        dialect.check(t)
        return versions(t)

    link = dialect.link()
    try:
        version, least = link.read(query)
    finally:
        link.close()
    newest = MIGRATIONS[-1].version
    if least > newest:
        raise UserError(f"{dialect.place} was written by a newer fde_ray; update this one.")
    state = f"schema {version}" if version else "empty"
    return f"{dialect.place} ({state})"
