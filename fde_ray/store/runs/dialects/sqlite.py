"""SQLite: a file on this machine, one writer at a time."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Table
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from fde_ray.model.clock import SystemClock
from fde_ray.model.errors import FdeRayError, StoreError, UserError
from fde_ray.store.errors import Unstorable
from fde_ray.store.runs.statements import Bulk, storable_texts
from fde_ray.store.runs.transaction import Transaction

from . import Written

T = TypeVar("T")
PATIENCE_S = 20.0
"""How long a call waits for the write lock."""

SQLALCHEMY = SQLiteDialect_pysqlite()
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


class SqliteDialect:
    name = "sqlite"
    sqlalchemy = SQLALCHEMY
    connections = 1
    has_row_locks = False

    def __init__(self, path: Path, patience_s: float = PATIENCE_S) -> None:
        self.path, self.patience_s = path, patience_s

    @property
    def place(self) -> str:
        return str(self.path)

    def exists(self) -> bool:
        return self.path.exists()

    def check(self, t: Transaction) -> None:
        """Nothing more than that it opens."""

    def prepare(self) -> None:
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"the folder {folder} cannot be made: {error.strerror}.") from error

    def link(self) -> SqliteLink:
        return SqliteLink(self)

    def upsert(self, table: Table) -> Any:
        return insert(table)

    def storable(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return storable_texts(values)

    def spelled(self, sql: str) -> str:
        return sql

    def table_names(self, connection: Any) -> frozenset[str]:
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return frozenset(row[0] for row in rows)

    def lock_schema(self, connection: Any) -> None:
        """Nothing to do: the transaction holds the only write lock."""

    def time(self, connection: Any) -> float:
        return SystemClock().now()

    def execute_many(self, connection: Any, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
        connection.executemany(sql, rows)

    def run_all(self, connection: Any, bulk: Bulk, rows: Sequence[tuple[Any, ...]]) -> int:
        storable = [storable_texts(row) for row in rows]
        return int(connection.executemany(bulk.by_row, storable).rowcount)

    def find_all(
        self, connection: Any, bulk: Bulk, rows: Sequence[tuple[Any, ...]]
    ) -> list[tuple[Any, ...]]:
        return [
            row for keys in rows for row in connection.execute(bulk.by_row, storable_texts(keys))
        ]


class SqliteLink:
    def __init__(self, dialect: SqliteDialect) -> None:
        self.dialect = dialect
        self.connection: Any = None

    def open(self) -> None:
        if self.connection is None:
            try:
                self.connection = _connected(self.dialect)
            except sqlite3.Error as error:
                raise _translated(error, self.dialect.path) from error

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def leave(self) -> None:
        """A file is never away."""

    def write(self, change: Callable[[Transaction], T]) -> Written[T]:
        return self._done("BEGIN IMMEDIATE", change)

    def read(self, query: Callable[[Transaction], T]) -> T:
        self.open()
        try:
            return query(Transaction(self.connection, self.dialect))
        except (sqlite3.Error, OverflowError) as error:
            raise _translated(error, self.dialect.path) from error

    def snapshot(self, query: Callable[[Transaction], T]) -> T:
        return self._done("BEGIN", query).result

    def _done(self, begin: str, change: Callable[[Transaction], T]) -> Written[T]:
        self.open()
        connection = self.connection
        try:
            connection.execute(begin)
            try:
                transaction = Transaction(connection, self.dialect)
                result = change(transaction)
                connection.execute("COMMIT")
            except BaseException:
                _roll_back(connection)
                raise
        except (sqlite3.Error, OverflowError) as error:
            raise _translated(error, self.dialect.path) from error
        return Written(result, transaction.topics)


def _connected(dialect: SqliteDialect) -> sqlite3.Connection:
    """Open the file in autocommit mode: transactions are begun and ended by hand."""
    connection = sqlite3.connect(
        dialect.path,
        timeout=dialect.patience_s,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=512,
    )
    try:
        for pragma in _PRAGMAS:
            _set(connection, pragma, dialect.patience_s)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _set(connection: sqlite3.Connection, pragma: str, patience_s: float) -> None:
    """Set a pragma. SQLite's own patience is none for a new file that others change to WAL, too."""
    ends_at = time.monotonic() + patience_s
    while True:
        try:
            connection.execute(pragma).close()
            return
        except sqlite3.OperationalError as error:
            is_busy = (error.sqlite_errorcode & 0xFF) == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > ends_at:
                raise
            time.sleep(0.01)


def _roll_back(connection: Any) -> None:
    # A full disk or a damaged file may have ended the transaction already.
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def _translated(error: Exception, path: Path) -> FdeRayError:
    """Return our error, one sentence, for an error of the driver."""
    if isinstance(error, OverflowError):
        return Unstorable(f"a value is not one that the run store can hold: {error}")
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
