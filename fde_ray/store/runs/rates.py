"""Token buckets that processes share: each draws once a second what its calls need."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam as b
from sqlalchemy import select

from fde_ray.metering.pacing import capacity, shared_draw
from fde_ray.metering.shares import RateAsk
from fde_ray.model.clock import Clock

from . import schema
from .database import Database, Statement, Transaction, keeping, updating
from .leases import given_time, lease_time

_R = schema.rates.c
_FIND = Statement(select(_R.level, _R.at).where(_R.key == b("key_")).with_for_update())
_ADD = keeping(schema.rates, "key", "level", "at")
_SET = updating(schema.rates, _R.key == b("key_"), columns=("level", "at"))


class Rates:
    _db: Database
    _clock: Clock

    async def draw_rates(self, asks: Sequence[RateAsk]) -> list[float]:
        """Take out of each bucket what is wanted, or what is there; negative = give back."""
        given = given_time(self._clock)

        def change(t: Transaction) -> list[float]:
            now = lease_time(t, given)
            drawn = {ask.key: _drawn(t, ask, now) for ask in sorted(asks)}
            return [drawn[ask.key] for ask in asks]

        return await self._db.write(change)


def _drawn(t: Transaction, ask: RateAsk, now: float) -> float:
    row = t.one(_FIND, key_=ask.key)
    if row is None:
        t.run(_ADD, key=ask.key, level=capacity(ask.per_minute), at=now)
        row = t.one(_FIND, key_=ask.key)
    granted, level = shared_draw(ask, row[0], row[1], now)
    t.run(_SET, key_=ask.key, level=level, at=max(now, row[1]))
    return granted
