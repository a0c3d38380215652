"""Which fleet of drivers may claim shards: the one that was begun last, until it is ended.

A fleet is what one start of the engine on a cluster brings up; two of them share a store while one
takes over from the other. Its number goes with every claim, and a claim of an earlier one is
refused.
"""

from __future__ import annotations

from . import schema
from .database import Database, Transaction, replacing
from .leases import LEASE_COUNTER, LOCK_META
from .migrations import READ_META

_KEY = "generation"
_SET = replacing(schema.meta, "key", "value")


class Generations:
    _db: Database

    async def begin_generation(self) -> int:
        """Return the number of a new fleet; those before may claim nothing from here on."""
        return await self._db.write(_raised)

    async def end_generation(self, number: int) -> None:
        """Let this fleet claim nothing more, before another has been begun."""

        def change(t: Transaction) -> None:
            t.hold(LOCK_META, key_=LEASE_COUNTER)
            if _current(t) == number:
                _raised(t)

        await self._db.write(change)

    async def generation(self) -> int:
        """Return the number of the newest fleet; 0 = there was none yet."""
        return await self._db.read(_current)


def _current(t: Transaction) -> int:
    row = t.one(READ_META, key_=_KEY)
    return 0 if row is None else int(row[0])


def _raised(t: Transaction) -> int:
    t.hold(LOCK_META, key_=LEASE_COUNTER)
    number = _current(t) + 1
    t.run(_SET, key=_KEY, value=str(number))
    return number
