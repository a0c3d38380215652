"""Ordered changes of the schema; each runs with its record in one transaction.

To change a table: copy what the first migration creates into a frozen list, change `schema`, and
append a migration. Steps hold statements that every supported database understands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sqlalchemy import bindparam, func, select
from sqlalchemy.schema import CreateIndex, CreateTable

from fde_ray.model.errors import UserError
from fde_ray.model.ids import SHARDS

from . import dialect, schema
from .database import Database, Statement, Transaction, inserting


class Migration(NamedTuple):
    version: int
    name: str
    apply: Callable[[Transaction], None]


def first_schema() -> list[str]:
    """Return the statements that create every table and index of version 1."""
    found: list[str] = []
    for table in schema.metadata.sorted_tables:
        found.append(str(CreateTable(table).compile(dialect=dialect.DIALECT)))
        indexes = sorted(table.indexes, key=lambda index: str(index.name))
        found += [str(CreateIndex(index).compile(dialect=dialect.DIALECT)) for index in indexes]
    return found


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


MIGRATIONS: tuple[Migration, ...] = (Migration(1, "create the tables", _create),)

_VERSION = Statement(select(func.max(schema.migrations.c.version)))
_RECORD = inserting(schema.migrations, "version", "name", "at")
READ_META = Statement(select(schema.meta.c.value).where(schema.meta.c.key == bindparam("key_")))


async def migrate(
    database: Database, now: float, migrations: tuple[Migration, ...] = MIGRATIONS
) -> None:
    """Bring the database to the newest version; UserError when it is newer than this program."""
    version = await database.read(_version)
    if version > migrations[-1].version:
        raise UserError(
            f"the run store {database.path} was written by a newer fde_ray"
            f" (schema {version}, this program knows {migrations[-1].version}); update fde_ray."
        )
    for migration in migrations:
        if migration.version > version:
            await database.write(lambda t, m=migration: _step(t, m, now))  # type: ignore[misc]


def _version(transaction: Transaction) -> int:
    names = transaction.table_names()
    if not names:
        return 0
    if not names >= {"migrations", "meta", "shards"}:
        raise UserError(
            "the database holds tables of another program; choose another home for the run store."
        )
    row = transaction.one(_VERSION)
    return int(row[0] or 0)


def _step(transaction: Transaction, migration: Migration, now: float) -> None:
    # Another process may have come first while this one waited for the write lock.
    if _version(transaction) >= migration.version:
        return
    migration.apply(transaction)
    transaction.run(_RECORD, version=migration.version, name=migration.name, at=now)
