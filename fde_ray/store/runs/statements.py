"""SQL as values: written in SQLAlchemy Core, compiled once per dialect, run on the driver's cursor.

The execution layer of SQLAlchemy costs several times what the statement itself costs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Protocol

from sqlalchemy import Float, Table, Text, insert, or_, update
from sqlalchemy.sql import ClauseElement


class Compiler(Protocol):
    """What statements need to know of a database."""

    @property
    def name(self) -> str: ...
    @property
    def sqlalchemy(self) -> Any:
        """The dialect that clauses are compiled for; its parameters are positional."""
        ...

    def upsert(self, table: Table) -> Any:
        """Return an insert that has `on_conflict_do_nothing` and `on_conflict_do_update`."""
        ...

    def storable(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the parameters with what no column can hold replaced."""
        ...


STAND_IN = "\ufffd"
_BAD = re.compile("[\\0\\ud800-\\udfff]")
Clause = ClauseElement | Callable[[Compiler], ClauseElement]


class Form:
    """A statement for one dialect."""

    __slots__ = ("_defaults", "_pick", "_storable", "sql")

    def __init__(self, clause: Clause, columns: Sequence[str] | None, compiler: Compiler) -> None:
        if not isinstance(clause, ClauseElement):
            clause = clause(compiler)
        compiled: Any = clause.compile(dialect=compiler.sqlalchemy, column_keys=columns)
        self._defaults = {
            name: bind.value
            for bind, name in compiled.bind_names.items()
            if not bind.required and bind.value is not None
        }
        self._pick = _picker(tuple(compiled.positiontup or ()))
        self._storable = compiler.storable
        self.sql = str(compiled)

    def parameters(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        picked = self._pick({**self._defaults, **values} if self._defaults else values)
        return self._storable(picked)


class Statement:
    """A clause compiled at its first use. Parameters go by name; a missing one is a KeyError."""

    __slots__ = ("_clause", "_columns", "_forms")

    def __init__(self, clause: Clause, columns: Sequence[str] | None = None) -> None:
        self._clause, self._columns = clause, columns
        self._forms: dict[str, Form] = {}

    def form(self, compiler: Compiler) -> Form:
        form = self._forms.get(compiler.name)
        if form is None:
            form = self._forms[compiler.name] = Form(self._clause, self._columns, compiler)
        return form


def _picker(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    if not names:
        return lambda _values: ()
    if len(names) == 1:
        only = names[0]
        return lambda values: (values[only],)
    return itemgetter(*names)


def storable_texts(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the parameters with U+FFFD for each NUL, which PostgreSQL refuses in a text, and for
    each half of a surrogate pair, which no database takes."""
    for value in values:
        if value.__class__ is str and not _is_storable(value):
            return tuple(storable_text(v) if isinstance(v, str) else v for v in values)
    return values


def storable_text(text: str) -> str:
    """Return the text as it reads back."""
    return text if _is_storable(text) else _BAD.sub(STAND_IN, text)


def _is_storable(text: str) -> bool:
    if text.isascii():
        return "\0" not in text
    return _BAD.search(text) is None


def among(column: Any, *values: str) -> Any:
    """Return the condition that `column` is one of `values` (IN needs a new text per execution)."""
    return or_(*(column == value for value in values))


def inserting(table: Table, *columns: str) -> Statement:
    return Statement(insert(table).inline(), columns)


def keeping(table: Table, *columns: str) -> Statement:
    """Insert unless the row is there; the number of rows changed says which."""

    def clause(compiler: Compiler) -> ClauseElement:
        row = compiler.upsert(table).values(dict.fromkeys(columns))
        kept: ClauseElement = row.on_conflict_do_nothing()
        return kept

    return Statement(clause, columns)


def replacing(table: Table, *columns: str) -> Statement:
    """Insert, or set the other columns of the row with the same primary key."""
    keys = [column.name for column in table.primary_key]

    def clause(compiler: Compiler) -> ClauseElement:
        row = compiler.upsert(table).values(dict.fromkeys(columns))
        changed = {name: row.excluded[name] for name in columns if name not in keys}
        set_: ClauseElement = row.on_conflict_do_update(index_elements=keys, set_=changed)
        return set_

    return Statement(clause, columns)


def updating(table: Table, *where: Any, columns: Sequence[str] = (), **values: Any) -> Statement:
    """Set `columns` from parameters of their names, and `values` from expressions."""
    clause = update(table).where(*where)
    return Statement(clause.values(**values) if values else clause, columns)


class Bulk:
    """One statement for many rows: on a server one round trip, whatever their number.

    by_row: for one row, with `?`. by_array: for all, each column as an array. names: of the values
    of a row, in their order.
    """

    __slots__ = ("by_array", "by_row", "names", "pick")

    def __init__(self, by_row: str, by_array: str, names: Sequence[str]) -> None:
        self.by_row, self.by_array, self.names = by_row, by_array, tuple(names)
        self.pick = _picker(self.names)


def keeping_all(table: Table, *columns: str) -> Bulk:
    """Insert the rows that are not there; the number of rows changed says how many."""
    into = f"INSERT INTO {table.name} ({_list(columns)})"
    marks = ", ".join("?" * len(columns))
    return Bulk(
        f"{into} VALUES ({marks}) ON CONFLICT DO NOTHING",
        f"{into} SELECT * FROM {_unnested(table, columns)} ON CONFLICT DO NOTHING",  # noqa: S608
        columns,
    )


def updating_all(table: Table, keys: Sequence[str], columns: Sequence[str], only: str = "") -> Bulk:
    """Set `columns` of the rows with these keys. only: a further condition, in SQL."""
    name, names = table.name, (*columns, *keys)
    more = f" AND {only}" if only else ""
    by_key = " AND ".join(f'"{key}" = ?' for key in keys)
    joined = " AND ".join(f'{name}."{key}" = v."{key}"' for key in keys)
    by_mark = ", ".join(f'"{column}" = ?' for column in columns)
    by_name = ", ".join(f'"{column}" = v."{column}"' for column in columns)
    source = f"{_unnested(table, names)} AS v({_list(names)})"
    return Bulk(
        f"UPDATE {name} SET {by_mark} WHERE {by_key}{more}",  # noqa: S608
        f"UPDATE {name} SET {by_name} FROM {source} WHERE {joined}{more}",  # noqa: S608
        names,
    )


def finding_all(
    table: Table, keys: Sequence[str], columns: Sequence[str], *, locked: bool = False
) -> Bulk:
    """Select `columns` of the rows with these keys, in the order of their keys; locked: FOR UPDATE
    where others could change them."""
    name = table.name
    by_key = " AND ".join(f'"{key}" = ?' for key in keys)
    joined = " AND ".join(f'{name}."{key}" = v."{key}"' for key in keys)
    ordered = ", ".join(f'{name}."{key}"' for key in keys)
    chosen = ", ".join(f'{name}."{column}"' for column in columns)
    source = f"{_unnested(table, keys)} AS v({_list(keys)})"
    lock = f" FOR UPDATE OF {name}" if locked else ""
    return Bulk(
        f"SELECT {chosen} FROM {name} WHERE {by_key}",  # noqa: S608
        f"SELECT {chosen} FROM {name} JOIN {source} ON {joined} ORDER BY {ordered}{lock}",  # noqa: S608
        keys,
    )


def _list(columns: Sequence[str]) -> str:
    return ", ".join(f'"{column}"' for column in columns)


def _unnested(table: Table, columns: Sequence[str]) -> str:
    arrays = [f"${n}::{_array_of(table.c[c].type)}" for n, c in enumerate(columns, 1)]
    return f"unnest({', '.join(arrays)})"


def _array_of(kind: Any) -> str:
    if isinstance(kind, Text):
        return "text[]"
    return "double precision[]" if isinstance(kind, Float) else "bigint[]"
