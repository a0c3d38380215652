"""Connections by hand, beside the store."""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg

from fde_ray.store.runs import StoreLocation
from fde_ray.store.runs.location import POSTGRESQL


def by_hand(location: StoreLocation) -> Any:
    """Return a connection to the database of a store; transactions are begun by hand."""
    if location.url.startswith(POSTGRESQL):
        return psycopg.connect(location.url, autocommit=True)
    return sqlite3.connect(location.url, isolation_level=None)
