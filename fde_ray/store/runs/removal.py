"""Forgets a sweep that is over: its row and its wants. Runs, grades and results stay."""

from __future__ import annotations

from sqlalchemy import bindparam as b
from sqlalchemy import func, select

from fde_ray.model.errors import UserError
from fde_ray.model.states import Phase

from . import schema
from .database import Database, Statement, Transaction

_W, _R, _S = schema.wants.c, schema.runs.c, schema.sweeps.c
_THIS = (_S.tenant == b("tenant_")) & (_S.name == b("name_"))
_WANTED = (_W.tenant == b("tenant_")) & (_W.sweep == b("name_"))
_ENDED = [phase.value for phase in Phase if phase.is_terminal]
_STATE = Statement(select(_S.state).where(_THIS).with_for_update())
_LIVE = Statement(
    select(func.count())
    .select_from(schema.wants.join(schema.runs, _R.run_id == _W.run_id))
    .where(_WANTED, *(_R.phase != phase for phase in _ENDED))
)
_DROP_WANTS = Statement(schema.wants.delete().where(_WANTED))
_DROP_SWEEP = Statement(schema.sweeps.delete().where(_THIS))


class Removal:
    _db: Database

    async def check_removable(self, name: str, *, tenant: str) -> None:
        """UserError unless the sweep is cancelled and none of its runs is under way."""
        await self._db.read(lambda t: _check(t, name, tenant))

    async def remove_sweep(self, name: str, *, tenant: str) -> None:
        """Forget the sweep. UserError as `check_removable`."""

        def change(t: Transaction) -> None:
            _check(t, name, tenant)
            t.run(_DROP_WANTS, tenant_=tenant, name_=name)
            t.run(_DROP_SWEEP, tenant_=tenant, name_=name)
            t.wake(("sweeps",))

        await self._db.write(change)


def _check(t: Transaction, name: str, tenant: str) -> None:
    row = t.one(_STATE, tenant_=tenant, name_=name)
    if row is None:
        raise UserError(f"there is no sweep named {name[:63]!r}")
    if row[0] != "cancelled":
        raise UserError(f"sweep {name!r} is {row[0]}; cancel it first")
    (live,) = t.one(_LIVE, tenant_=tenant, name_=name)
    if live:
        raise UserError(f"{live} runs of sweep {name!r} have not ended; try again when they have")
