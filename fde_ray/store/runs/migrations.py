"""Ordered changes of the schema; each runs with its record in one transaction.

To change a table: mark what is new in `schema` with the version of its migration, and append a
migration that adds `grown(version)`. Steps are written in SQLite's words, as far as PostgreSQL has
them too; `Transaction.raw` spells the types of either.

Programs of the version before are still at work when a new one migrates: add tables, and columns
that may be NULL or have a default. A change that older programs cannot live with says so
(`breaks_older`): from then on they are refused at their start.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from sqlalchemy import Column, Index, MetaData, Table, bindparam, func, select, update
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable
from sqlalchemy.sql import ClauseElement

from fde_ray.model.errors import UserError
from fde_ray.model.ids import CONTROLLER_SHARD, SHARDS
from fde_ray.model.plan import image_name

from . import schema
from .database import (
    Database,
    Statement,
    Transaction,
    inserting,
    keeping,
    replacing,
    updating,
)
from .dialects.sqlite import SQLALCHEMY
from .statements import Compiler


class Migration(NamedTuple):
    version: int
    name: str
    apply: Callable[[Transaction], None]
    breaks_older: bool = False


def first_schema() -> list[str]:
    """Return the statements that create every table and index of version 1."""
    found: list[str] = []
    for table in schema.metadata.sorted_tables:
        if _since(table) == 1:
            found += _created(table, 1)
    return found


def grown(version: int) -> list[str]:
    """Return the statements that add what `schema` marks with this version."""
    found: list[str] = []
    for table in schema.metadata.sorted_tables:
        if _since(table) == version:
            found += _created(table, version)
            continue
        if _since(table) > version:
            continue
        added = [column for column in table.columns if _since(column) == version]
        found += [f"ALTER TABLE {table.name} ADD COLUMN {_sql(CreateColumn(c))}" for c in added]
        found += [_sql(CreateIndex(index)) for index in _indexes(table, version)]
    return found


def _since(item: Table | Column[Any] | Index) -> int:
    return int(item.info.get("since", 1))


def _sql(clause: Any) -> str:
    return str(clause.compile(dialect=SQLALCHEMY))


def _created(table: Table, version: int) -> Iterator[str]:
    """Yield what creates the table as it was at its version."""
    columns = [_like(column) for column in table.columns if _since(column) <= version]
    yield _sql(CreateTable(Table(table.name, MetaData(), *columns, **_OPTIONS.get(table.name, {}))))
    for index in _indexes(table, version):
        yield _sql(CreateIndex(index))


def _like(column: Column[Any]) -> Column[Any]:
    return Column(
        column.name,
        column.type,
        primary_key=column.primary_key,
        nullable=column.nullable,
        server_default=column.server_default,
        autoincrement=column.autoincrement,
    )


def _indexes(table: Table, version: int) -> list[Index]:
    found = [index for index in table.indexes if _since(index) == version]
    return sorted(found, key=lambda index: str(index.name))


_OPTIONS: dict[str, dict[str, Any]] = {
    "inbox": {"sqlite_autoincrement": True},
    "audit": {"sqlite_autoincrement": True},
}


def _create(transaction: Transaction) -> None:
    for statement in first_schema():
        transaction.raw(statement)
    transaction.run_many(
        inserting(schema.shards, "shard"), [{"shard": shard} for shard in range(SHARDS)]
    )
    values = {"incarnation": "1", "lease_counter": "0"}
    transaction.run_many(
        inserting(schema.meta, "key", "value"),
        [{"key": key, "value": value} for key, value in values.items()],
    )


_PLANS = Statement(select(schema.runs.c.run_id, schema.runs.c.plan))
_NAME = updating(
    schema.runs, schema.runs.c.run_id == bindparam("run_id_"), columns=("model", "image")
)


def _schedule(transaction: Transaction) -> None:
    """Add what admission needs; runs that are there get their model and image from their plans."""
    for statement in grown(2):
        transaction.raw(statement)
    transaction.run(keeping(schema.shards, "shard"), shard=CONTROLLER_SHARD)
    for run_id, text in transaction.all(_PLANS):
        plan = json.loads(text)
        system, lock = plan["system"], plan["identity"]["scaffold_lock"]
        image = image_name(system["scaffold"], lock)
        transaction.run(_NAME, run_id_=run_id, model=system["model"], image=image)


def _hold_turns(transaction: Transaction) -> None:
    for statement in grown(3):
        transaction.raw(statement)


def _release(transaction: Transaction) -> None:
    """Let sweeps change their specs."""
    for statement in grown(4):
        transaction.raw(statement)


_RELEASE_CANCELLED = """
INSERT INTO released (run_id)
SELECT DISTINCT wants.run_id FROM wants
JOIN sweeps ON sweeps.tenant = wants.tenant AND sweeps.name = wants.sweep
WHERE sweeps.state = 'cancelled'
AND NOT EXISTS (SELECT 1 FROM released AS known WHERE known.run_id = wants.run_id)
"""


def _release_cancelled(transaction: Transaction) -> None:
    """Name the runs of cancelled sweeps where drivers look for them from here on."""
    transaction.raw(_RELEASE_CANCELLED)


_L = schema.ledger.c
_KEEP_REPLIES = """
INSERT INTO replies (call_id, subject, reply)
SELECT call_id, min(subject), min(reply) FROM ledger WHERE reply IS NOT NULL GROUP BY call_id
"""


def _dated(compiler: Compiler) -> ClauseElement:
    """Give the rows that are there their day and the source of their usage."""
    if compiler.name == "postgresql":
        at = func.timezone("UTC", func.to_timestamp(_L.started_at))
        return update(schema.ledger).values(day=func.to_char(at, "YYYY-MM-DD"))
    return update(schema.ledger).values(day=func.date(_L.started_at, "unixepoch"))


_DATE = Statement(_dated)


def _meter(transaction: Transaction) -> None:
    """Let many processes write the ledger, and budgets count beside it."""
    for statement in grown(6):
        transaction.raw(statement)
    transaction.run(_DATE)
    transaction.raw(_KEEP_REPLIES)
    transaction.raw("DROP INDEX ledger_by_state")


def _know_people(transaction: Transaction) -> None:
    for statement in grown(7):
        transaction.raw(statement)


def _share_rates(transaction: Transaction) -> None:
    for statement in grown(8):
        transaction.raw(statement)


def _tell_shortened(transaction: Transaction) -> None:
    """Keep how replies ended, and whether a budget cut a run."""
    for statement in grown(9):
        transaction.raw(statement)


def _run_in_boxes(transaction: Transaction) -> None:
    for statement in grown(10):
        transaction.raw(statement)


MIGRATIONS: tuple[Migration, ...] = (
    Migration(1, "create the tables", _create),
    Migration(2, "schedule runs", _schedule),
    Migration(3, "hold turns", _hold_turns),
    Migration(4, "release runs", _release),
    Migration(5, "release cancelled runs", _release_cancelled),
    Migration(6, "meter calls side by side", _meter),
    Migration(7, "know people", _know_people),
    Migration(8, "share rates", _share_rates),
    Migration(9, "tell shortened runs", _tell_shortened),
    Migration(10, "run programs of grades in boxes", _run_in_boxes),
)

_VERSION = Statement(select(func.max(schema.migrations.c.version)))
_RECORD = inserting(schema.migrations, "version", "name", "at")
READ_META = Statement(select(schema.meta.c.value).where(schema.meta.c.key == bindparam("key_")))


_LEAST = "least_version"
"""Key of `meta`: the oldest version whose programs can work with the tables."""
_SET_META = replacing(schema.meta, "key", "value")


async def migrate(
    database: Database, now: float, migrations: tuple[Migration, ...] = MIGRATIONS
) -> None:
    """Bring the database to the newest version; safe while other processes do the same.

    UserError when it was changed in a way that this program cannot live with.
    """
    newest = migrations[-1].version
    version, least = await database.read(versions)
    if least > newest:
        raise UserError(
            f"the run store {database.dialect.place} was written by a newer fde_ray"
            f" (schema {least}, this program knows {newest}); update fde_ray."
        )
    for migration in migrations:
        if migration.version > version:
            await database.write(lambda t, m=migration: _step(t, m, now))  # type: ignore[misc]


def versions(transaction: Transaction) -> tuple[int, int]:
    """Return the version of the tables, and the least one that can work with them."""
    names = transaction.table_names()
    if not names:
        return 0, 0
    if not names >= {"migrations", "meta", "shards"}:
        raise UserError(
            "the database holds tables of another program; choose another home for the run store."
        )
    version, least = transaction.one(_VERSION), transaction.one(READ_META, key_=_LEAST)
    return int(version[0] or 0), 0 if least is None else int(least[0])


def _step(transaction: Transaction, migration: Migration, now: float) -> None:
    transaction.lock_schema()
    # Another process may have come first while this one waited.
    if versions(transaction)[0] >= migration.version:
        return
    migration.apply(transaction)
    transaction.run(_RECORD, version=migration.version, name=migration.name, at=now)
    if migration.breaks_older:
        transaction.run(_SET_META, key=_LEAST, value=str(migration.version))
