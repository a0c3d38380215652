"""All that is SQLite: how to open it, begin a write, insert idempotently, and name its errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Table
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.sql import ClauseElement

from fde_ray.model.errors import FdeRayError, StoreError, UserError

DIALECT = SQLiteDialect_pysqlite()
DRIVER_ERROR = sqlite3.Error
BEGIN_WRITE = "BEGIN IMMEDIATE"

_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    # In WAL mode this survives a killed process; a power cut may lose the last transactions.
    "PRAGMA synchronous=NORMAL",
    # 16 MiB between checkpoints: the same few pages change again and again, and each checkpoint
    # waits for the disk.
    "PRAGMA wal_autocheckpoint=4000",
    "PRAGMA foreign_keys=OFF",
    "PRAGMA temp_store=MEMORY",
)


def connect(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """Open the file in autocommit mode; the caller begins and ends transactions itself."""
    connection = sqlite3.connect(
        path,
        timeout=busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=512,
    )
    try:
        for pragma in _PRAGMAS:
            connection.execute(pragma).close()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def roll_back(connection: Any) -> None:
    # A full disk or a damaged file may have ended the transaction already.
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def table_names(connection: Any) -> frozenset[str]:
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return frozenset(row[0] for row in rows)


def insert_or_keep(table: Table, columns: Sequence[str]) -> ClauseElement:
    """Insert a row; keep the one that is there. `rowcount` says which."""
    return sqlite_insert(table).values(dict.fromkeys(columns)).on_conflict_do_nothing()


def insert_or_replace(table: Table, columns: Sequence[str]) -> ClauseElement:
    """Insert a row, or set the other columns of the row with the same primary key."""
    statement = sqlite_insert(table).values(dict.fromkeys(columns))
    keys = [c.name for c in table.primary_key]
    changed = {name: statement.excluded[name] for name in columns if name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=changed)


def translated(error: Exception, path: Path) -> FdeRayError:
    """Return our error, one sentence, for an error of the driver."""
    name = str(getattr(error, "sqlite_errorname", ""))
    for prefix, (kind, sentence) in _SENTENCES.items():
        if name.startswith(prefix):
            return kind(sentence.format(path=path))
    return StoreError(f"the run store {path} failed: {error}")


_SENTENCES: dict[str, tuple[type[UserError] | type[StoreError], str]] = {
    "SQLITE_NOTADB": (
        UserError,
        "{path} is not a run store; move the file away or choose another home.",
    ),
    "SQLITE_CORRUPT": (
        UserError,
        "the run store {path} is damaged; restore it from a copy, or move it away to start anew.",
    ),
    "SQLITE_CANTOPEN": (
        UserError,
        "the run store {path} cannot be opened; check that its folder exists and is writable.",
    ),
    "SQLITE_READONLY": (
        UserError,
        "the run store {path} cannot be written; check the permissions of the file and its folder.",
    ),
    "SQLITE_FULL": (StoreError, "the disk under the run store {path} is full"),
    "SQLITE_BUSY": (StoreError, "another process keeps the run store {path} locked"),
    "SQLITE_LOCKED": (StoreError, "another process keeps the run store {path} locked"),
    "SQLITE_IOERR": (StoreError, "the disk under the run store {path} reports an error"),
}
