"""What drivers say of the shards that are meant for them and that others hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import bindparam as b
from sqlalchemy import select

from fde_ray.model.clock import Clock

from . import schema
from .database import Database, Statement, Transaction, replacing
from .leases import given_time, lease_time

_KEY = "ask/"
_S, _M = schema.shards.c, schema.meta.c
_ASK = replacing(schema.meta, "key", "value")
_ASKS = Statement(select(_M.key, _M.value).where(_M.key.like(f"{_KEY}%")))
_OWNERS = Statement(
    select(_S.shard, _S.owner).where(_S.owner.is_not(None), _S.expires_at > b("now_"))
)


class Claims(NamedTuple):
    """owners: of the shards whose leases are good. asking: by name, for how many seconds."""

    owners: Mapping[int, str]
    asking: Mapping[str, float]


class Asking:
    _db: Database
    _clock: Clock

    async def ask_for_shards(self, name: str, asks_for_s: float) -> None:
        """Say that a driver lives and misses shards that are meant for it, since so long."""
        at = given_time(self._clock)

        def change(t: Transaction) -> None:
            value = json.dumps([lease_time(t, at), asks_for_s])
            t.run(_ASK, key=f"{_KEY}{name}", value=value)

        await self._db.write(change)

    async def claims(self, fresh_s: float) -> Claims:
        """Return who holds what, and who asked within the last `fresh_s`."""
        at = given_time(self._clock)

        def query(t: Transaction) -> Claims:
            now, asking = lease_time(t, at), dict[str, float]()
            for key, value in t.all(_ASKS):
                asked_at, asks_for_s = json.loads(value)
                if now - asked_at <= fresh_s:
                    asking[key.removeprefix(_KEY)] = asks_for_s
            return Claims(dict(t.all(_OWNERS, now_=now)), asking)

        return await self._db.read(query)
