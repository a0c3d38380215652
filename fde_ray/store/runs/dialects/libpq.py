"""Statements straight on libpq: a cursor of psycopg costs four times the CPU of the call itself.

Parameters and rows travel as text; every parameter is cast in the statement, so that it needs no
type. Prepared statements are never made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import psycopg
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus

_DONE = {ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK}


def _number(data: bytes) -> int | float:
    """Sums of integers are `numeric`; all of ours are whole."""
    return int(data) if data.lstrip(b"-").isdigit() else float(data)


_READERS: dict[int, Callable[[bytes], Any]] = {
    16: lambda data: data == b"t",
    20: int,
    21: int,
    23: int,
    700: float,
    701: float,
    1700: _number,
}
"""By the number of the type; all others are texts."""


class Session:
    """Executes one statement at a time; what it found stays until the next."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection, self._pgconn = connection, connection.pgconn
        self._result: Any = None
        self._row = 0

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Self:
        """Without parameters, `sql` may be several statements; the last one's rows are kept.

        Raises psycopg.Error.
        """
        try:
            if parameters:
                texts = [_text(value) for value in parameters]
                result = self._pgconn.exec_params(sql.encode(), texts)
            else:
                result = self._pgconn.exec_(sql.encode())
        except MemoryError as error:  # what libpq's empty answer becomes: nothing could be sent
            raise psycopg.OperationalError(self._pgconn.get_error_message()) from error
        if result.status not in _DONE:
            raise error_from_result(result)
        self._result, self._row = result, 0
        return self

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute a statement for each row, without waiting for each answer."""
        with psycopg.RawCursor(self._connection) as cursor:
            cursor.executemany(sql, rows)

    @property
    def rowcount(self) -> int:
        return self._result.command_tuples or 0

    def fetchone(self) -> tuple[Any, ...] | None:
        if self._row >= self._result.ntuples:
            return None
        self._row += 1
        return self._read(self._row - 1, self._readers())

    def fetchall(self) -> list[tuple[Any, ...]]:
        readers = self._readers()
        return [self._read(row, readers) for row in range(self._row, self._result.ntuples)]

    def _readers(self) -> list[Callable[[bytes], Any]]:
        result = self._result
        return [_READERS.get(result.ftype(n), bytes.decode) for n in range(result.nfields)]

    def _read(self, row: int, readers: list[Callable[[bytes], Any]]) -> tuple[Any, ...]:
        value = self._result.get_value
        found = [value(row, column) for column in range(len(readers))]
        return tuple(
            [
                None if data is None else read(data)
                for data, read in zip(found, readers, strict=True)
            ]
        )


def array(values: Iterable[Any]) -> str:
    """Return an array in the server's own notation; nan is NULL."""
    return "{" + ",".join([_element(value) for value in values]) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return "NULL" if value.__class__ is float and math.isnan(value) else repr(value)


def _text(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float):
        return repr(value).encode()
    return b"%d" % value
