"""What a store method may do while its transaction is open."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from fde_ray.model.errors import Superseded

from .dialects import Dialect
from .statements import Bulk, Statement


class Transaction:
    """Lives on the thread of its connection.

    On a database with row locks other writers are at work meanwhile. A method that reads and then
    writes what depends on it reads with FOR UPDATE, `holds` a row first, or is one conditional
    statement. Locks are taken in one order: shard, run, session, the rest.
    """

    __slots__ = ("_connection", "_dialect", "_execute", "topics")

    def __init__(self, connection: Any, dialect: Dialect) -> None:
        self._connection, self._dialect = connection, dialect
        self._execute = connection.execute
        self.topics: list[Hashable] = []

    def run(self, statement: Statement, **values: Any) -> int:
        """Execute and return the number of rows changed."""
        form = statement.form(self._dialect)
        return int(self._execute(form.sql, form.parameters(values)).rowcount)

    def run_many(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> None:
        form = statement.form(self._dialect)
        if many := [form.parameters(row) for row in rows]:
            self._dialect.execute_many(self._connection, form.sql, many)

    def run_all(self, bulk: Bulk, rows: Sequence[Mapping[str, Any]]) -> int:
        """Execute for all rows and return how many were changed."""
        if not rows:
            return 0
        return self._dialect.run_all(self._connection, bulk, [bulk.pick(row) for row in rows])

    def find_all(self, bulk: Bulk, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return what is found for all rows of keys."""
        if not rows:
            return []
        return self._dialect.find_all(self._connection, bulk, [bulk.pick(row) for row in rows])

    def one(self, statement: Statement, **values: Any) -> Any:
        """Return the first row as a tuple, or None."""
        form = statement.form(self._dialect)
        return self._execute(form.sql, form.parameters(values)).fetchone()

    def all(self, statement: Statement, **values: Any) -> list[Any]:
        form = statement.form(self._dialect)
        rows: list[Any] = self._execute(form.sql, form.parameters(values)).fetchall()
        return rows

    def cas(self, statement: Statement, what: str, **values: Any) -> None:
        """Execute an update that must change one row; else Superseded."""
        if self.run(statement, **values) != 1:
            raise Superseded(what)

    def hold(self, statement: Statement, **values: Any) -> None:
        """Lock what a `SELECT ... FOR UPDATE` finds, where other writers could change it."""
        if self._dialect.has_row_locks:
            self.all(statement, **values)

    def held(self, statement: Statement) -> list[Any] | None:
        """Lock what a `SELECT ... FOR UPDATE SKIP LOCKED` finds and return it; None = nobody else
        can be changing anything."""
        return self.all(statement) if self._dialect.has_row_locks else None

    def lock_schema(self) -> None:
        self._dialect.lock_schema(self._connection)

    def table_names(self) -> frozenset[str]:
        return self._dialect.table_names(self._connection)

    def time(self) -> float:
        """Return the time of the database now, UTC."""
        return self._dialect.time(self._connection)

    def fetch(self, sql: str) -> Any:
        """Return the first row of a query in the database's own words, or None."""
        return self._execute(sql).fetchone()

    def raw(self, sql: str) -> None:
        """Execute a statement of a migration, written in SQLite's words."""
        self._execute(self._dialect.spelled(sql))

    def wake(self, *topics: Hashable) -> None:
        """Notify watchers of `topics` once the transaction is committed."""
        self.topics.extend(topics)
