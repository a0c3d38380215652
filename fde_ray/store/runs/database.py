"""One connection on one thread of its own; a method of the store is one transaction on it.

Statements are written in SQLAlchemy Core and compiled once; they run on the driver's cursor, since
the execution layer of SQLAlchemy costs several times what the statement itself costs.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Table, insert, or_, update
from sqlalchemy.sql import ClauseElement

from fde_ray.model.errors import StoreError, Superseded

from . import dialect
from .notifier import Notifier

T = TypeVar("T")
BUSY_TIMEOUT_S = 20.0


class Statement:
    """A clause compiled at its first use. Parameters go by name; a missing one is a KeyError."""

    __slots__ = ("_clause", "_columns", "_defaults", "_pick", "_sql")

    def __init__(self, clause: ClauseElement, columns: Sequence[str] | None = None) -> None:
        self._clause, self._columns = clause, columns
        self._sql: str | None = None
        self._defaults: dict[str, Any] = {}
        self._pick: Callable[[Mapping[str, Any]], tuple[Any, ...]] = _picker(())

    @property
    def sql(self) -> str:
        return self._sql if self._sql is not None else self._compile()

    def parameters(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        if self._sql is None:
            self._compile()
        return self._pick({**self._defaults, **values} if self._defaults else values)

    def _compile(self) -> str:
        compiled: Any = self._clause.compile(dialect=dialect.DIALECT, column_keys=self._columns)
        self._defaults = {
            name: bind.value
            for bind, name in compiled.bind_names.items()
            if not bind.required and bind.value is not None
        }
        self._pick = _picker(tuple(compiled.positiontup or ()))
        self._sql = str(compiled)
        return self._sql


def _picker(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    if not names:
        return lambda _values: ()
    if len(names) == 1:
        only = names[0]
        return lambda values: (values[only],)
    return itemgetter(*names)


def among(column: Any, *values: str) -> Any:
    """Return the condition that `column` is one of `values` (IN needs a new text per execution)."""
    return or_(*(column == value for value in values))


def inserting(table: Table, *columns: str) -> Statement:
    return Statement(insert(table), columns)


def keeping(table: Table, *columns: str) -> Statement:
    """Insert unless the row is there."""
    return Statement(dialect.insert_or_keep(table, columns))


def replacing(table: Table, *columns: str) -> Statement:
    """Insert, or change the row that is there."""
    return Statement(dialect.insert_or_replace(table, columns))


def updating(table: Table, *where: Any, columns: Sequence[str] = (), **values: Any) -> Statement:
    """Set `columns` from parameters of their names, and `values` from expressions."""
    clause = update(table).where(*where)
    return Statement(clause.values(**values) if values else clause, columns)


class Transaction:
    """What a store method may do while its transaction is open. Lives on the database thread."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._executemany = connection.executemany
        self.topics: list[Hashable] = []

    def run(self, statement: Statement, **values: Any) -> int:
        """Execute and return the number of rows changed."""
        return int(self._execute(statement.sql, statement.parameters(values)).rowcount)

    def run_many(self, statement: Statement, rows: Iterable[Mapping[str, Any]]) -> None:
        self._executemany(statement.sql, [statement.parameters(row) for row in rows])

    def one(self, statement: Statement, **values: Any) -> Any:
        """Return the first row as a tuple, or None."""
        return self._execute(statement.sql, statement.parameters(values)).fetchone()

    def all(self, statement: Statement, **values: Any) -> list[Any]:
        rows: list[Any] = self._execute(statement.sql, statement.parameters(values)).fetchall()
        return rows

    def cas(self, statement: Statement, what: str, **values: Any) -> None:
        """Execute an update that must change one row; else Superseded."""
        if self.run(statement, **values) != 1:
            raise Superseded(what)

    def table_names(self) -> frozenset[str]:
        return dialect.table_names(self._connection)

    def raw(self, sql: str) -> None:
        self._execute(sql)

    def wake(self, *topics: Hashable) -> None:
        """Notify watchers of `topics` once the transaction is committed."""
        self.topics.extend(topics)


class _Batch(NamedTuple):
    """Calls of one turn of an event loop."""

    loop: asyncio.AbstractEventLoop
    jobs: list[Callable[[], None]]


class Database:
    """Runs functions of a `Transaction` on the database thread, in the order of the calls."""

    def __init__(self, path: Path, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self.path = path
        self.changed = Notifier()
        self._busy_timeout_s = busy_timeout_s
        self._connection: Any = None
        self._jobs: SimpleQueue[_Batch | None] = SimpleQueue()
        self._called: list[Callable[[], None]] = []
        self._sending: asyncio.AbstractEventLoop | None = None
        self._ended: deque[Callable[[], None]] = deque()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="run-store", daemon=True)
        self._thread.start()

    async def open(self) -> None:
        await self._call(self._connect)

    async def close(self) -> None:
        """Close after the calls in flight; later ones raise StoreError."""
        if self._thread.is_alive():
            await self._call(self._disconnect)
            self._is_closed = True
            self._jobs.put(None)
            self._thread.join()

    async def write(self, change: Callable[[Transaction], T]) -> T:
        return await self._call(lambda: self._written(change))

    async def read(self, query: Callable[[Transaction], T]) -> T:
        """Run one SELECT, or several that need not see the same moment."""
        return await self._call(lambda: (query(Transaction(self._connection)), ()))

    def _connect(self) -> tuple[None, Sequence[Hashable]]:
        self._connection = dialect.connect(self.path, self._busy_timeout_s)
        return None, ()

    def _disconnect(self) -> tuple[None, Sequence[Hashable]]:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        return None, ()

    def _written(self, change: Callable[[Transaction], T]) -> tuple[T, Sequence[Hashable]]:
        connection = self._connection
        connection.execute(dialect.BEGIN_WRITE)
        try:
            transaction = Transaction(connection)
            result = change(transaction)
            connection.execute("COMMIT")
        except BaseException:
            dialect.roll_back(connection)
            raise
        return result, transaction.topics

    async def _call(self, job: Callable[[], tuple[T, Sequence[Hashable]]]) -> T:
        if self._is_closed:
            raise StoreError("the run store is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, topics: Sequence[Hashable], error: Exception | None) -> None:
            if topics:
                self.changed.notify(topics)
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)  # type: ignore[arg-type]
            else:
                future.set_exception(error)

        def perform() -> None:
            outcome: tuple[T | None, Sequence[Hashable], Exception | None]
            try:
                outcome = (*job(), None)
            except dialect.DRIVER_ERROR as error:
                ours = dialect.translated(error, self.path)
                ours.__cause__ = error
                outcome = (None, (), ours)
            except Exception as error:  # noqa: BLE001 - the boundary to the caller's task
                outcome = (None, (), error)
            self._ended.append(partial(settle, *outcome))

        self._called.append(perform)
        if self._sending is not loop:
            self._sending = loop
            loop.call_soon(self._send, loop)
        return await future

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand over all calls of one turn of the loop: waking a thread costs more than a call."""
        jobs, self._called, self._sending = self._called, [], None
        self._jobs.put(_Batch(loop, jobs))

    def _settle(self) -> None:
        while self._ended:
            self._ended.popleft()()

    def _work(self) -> None:
        while (batch := self._jobs.get()) is not None:
            for job in batch.jobs:
                job()
            try:
                batch.loop.call_soon_threadsafe(self._settle)
            except RuntimeError:  # the caller's loop is closed
                self._ended.clear()
