"""How a PostgreSQL server is reached, and what its refusals are called."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from fde_ray.model.errors import FdeRayError, StoreError, UserError, shortened
from fde_ray.store.errors import Unstorable

CONNECT_TIMEOUT_S = 5


def connection_settings(url: str) -> Mapping[str, Any]:
    """Return what libpq needs to connect; UserError hides the URL, which may hold a password."""
    try:
        found = conninfo_to_dict(url)
    except psycopg.Error:
        raise UserError(
            "the store's URL is not one of PostgreSQL: postgresql://user@host:port/database"
        ) from None
    if "password" in found:
        raise UserError(
            "the store's URL holds a password; name the variable or the file that holds it instead"
            " (`password_env`, `password_file`), or use PGPASSWORD or ~/.pgpass."
        )
    # A server that is gone without a word is noticed, by a connection at work or not.
    defaults = {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "keepalives_idle": 5,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 15_000,
        "application_name": "fde-ray",
        "target_session_attrs": "read-write",
    }
    return {**defaults, **found}


def translated(error: psycopg.Error, place: str) -> FdeRayError:
    """Return our error, one sentence, for an error of the driver."""
    # The detail of a message may hold the whole row.
    text = shortened(" ".join((error.diag.message_primary or str(error)).split()), 300)
    state = error.sqlstate or ""
    for fragment, (kind, sentence) in _SENTENCES.items():
        if fragment in text:
            return kind(sentence.format(place=place))
    if (missing := _MISSING.search(text)) is not None:
        return UserError(f"{place} has no such {missing.group(1)}; make it, or change the URL.")
    if state.startswith("22"):  # data exception
        return Unstorable(f"a value is not one that the run store can hold: {text}")
    if state == "42501":
        return UserError(f"the user of {place} may not do that: {text}")
    if isinstance(error, psycopg.OperationalError):
        return StoreError(f"{place} cannot be reached (start it, or check the URL): {text}")
    return StoreError(f"{place} failed: {text}")


_SENTENCES: dict[str, tuple[type[UserError] | type[StoreError], str]] = {
    "password authentication failed": (
        UserError,
        "{place} refuses the password; check `password_env` or `password_file` of the store.",
    ),
    "no password supplied": (
        UserError,
        "{place} wants a password; set `password_env` or `password_file` of the store.",
    ),
    "no pg_hba.conf entry": (
        UserError,
        "{place} lets this user in from no such address; ask its operator.",
    ),
    "could not translate host name": (
        StoreError,
        "the host of {place} is not known; check the store's URL and the network",
    ),
}
_MISSING = re.compile(r'(database|role) "[^"]*" does not exist')
