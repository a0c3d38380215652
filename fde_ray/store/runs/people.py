"""Who may ask the control-plane, and what was asked: users with hashed tokens, and a log."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from sqlalchemy import bindparam as b
from sqlalchemy import select

from fde_ray.model.clock import Clock
from fde_ray.model.errors import UserError, shortened

from . import schema
from .database import Database, Statement, Transaction, inserting, keeping, updating

UserRole = Literal["researcher", "admin"]
Outcome = Literal["allowed", "refused"]
OPERATOR = "operator"
"""Whoever has the profile, and with it the store."""

_U, _E, _W = schema.users.c, schema.audit.c, schema.sweeps.c
_USER = (_U.tenant, _U.name, _U.role, _U.created_at, _U.revoked_at)
_USERS = Statement(select(*_USER).where(_U.tenant == b("tenant_")).order_by(_U.name))
_BY_HASH = Statement(
    select(*_USER).where(
        _U.tenant == b("tenant_"), _U.token_hash == b("hash_"), _U.revoked_at.is_(None)
    )
)
_ADD = keeping(schema.users, "tenant", "name", "role", "token_hash", "created_at")
_THIS = (_U.tenant == b("tenant_")) & (_U.name == b("name_"))
_RENEW = updating(
    schema.users,
    _THIS,
    _U.revoked_at.is_not(None),
    columns=("role", "token_hash", "created_at", "revoked_at"),
)
_REVOKE = updating(schema.users, _THIS, _U.revoked_at.is_(None), columns=("revoked_at",))
_NOTE = inserting(schema.audit, "tenant", "at", "actor", "action", "target", "outcome", "detail")
_ENTRIES = Statement(
    select(_E.seq, _E.at, _E.actor, _E.action, _E.target, _E.outcome, _E.detail)
    .where(_E.tenant == b("tenant_"))
    .order_by(_E.seq.desc())
    .limit(b("limit_"))
)
_THIS_SWEEP = (_W.tenant == b("tenant_")) & (_W.name == b("name_"))
_OWNER = Statement(select(_W.owner).where(_THIS_SWEEP))
_OWNERS = Statement(select(_W.name, _W.owner).where(_W.tenant == b("tenant_")))
_CLAIM = updating(schema.sweeps, _THIS_SWEEP, _W.owner == "", columns=("owner",))


class UserRow(NamedTuple):
    tenant: str
    name: str
    role: UserRole
    created_at: float
    revoked_at: float | None
    """None = the token is good."""


class AuditRow(NamedTuple):
    seq: int
    at: float
    actor: str
    action: str
    target: str
    outcome: Outcome
    detail: str


class People:
    _db: Database
    _clock: Clock

    async def add_user(
        self, name: str, role: UserRole, token_hash: str, *, tenant: str, by: str = OPERATOR
    ) -> None:
        """Let a user in; one that was revoked gets the new token. UserError when one is known.

        by: who does it, for the log.
        """
        now = self._clock.now()
        values = {"role": role, "token_hash": token_hash, "created_at": now}
        entry = self._entry(by, "user add", name, "allowed", tenant, f"as {role}")

        def change(t: Transaction) -> None:
            is_new = t.run(_ADD, tenant=tenant, name=name, **values)
            if not is_new and not t.run(
                _RENEW, tenant_=tenant, name_=name, revoked_at=None, **values
            ):
                raise UserError(
                    f"there is a user {name!r}; `fde-ray user revoke {name}` ends the token first"
                )
            t.run(_NOTE, **entry)

        await self._db.write(change)

    async def revoke_user(self, name: str, *, tenant: str, by: str = OPERATOR) -> None:
        """End a user's token at once. UserError when there is no such user."""
        now = self._clock.now()
        entry = self._entry(by, "user revoke", name, "allowed", tenant)

        def change(t: Transaction) -> None:
            if not t.run(_REVOKE, tenant_=tenant, name_=name, revoked_at=now):
                raise UserError(f"there is no user {name[:63]!r}; see `fde-ray user ls`")
            t.run(_NOTE, **entry)

        await self._db.write(change)

    async def users(self, *, tenant: str) -> list[UserRow]:
        rows = await self._db.read(lambda t: t.all(_USERS, tenant_=tenant))
        return [UserRow(*row) for row in rows]

    async def user_of_token(self, token_hash: str, *, tenant: str) -> UserRow | None:
        row = await self._db.read(lambda t: t.one(_BY_HASH, tenant_=tenant, hash_=token_hash))
        return None if row is None else UserRow(*row)

    async def note(
        self,
        actor: str,
        action: str,
        target: str,
        outcome: Outcome,
        *,
        tenant: str,
        detail: str = "",
    ) -> None:
        """Write down what somebody asked for, before it is done."""
        entry = self._entry(actor, action, target, outcome, tenant, detail)
        await self._db.write(lambda t: t.run(_NOTE, **entry))

    def _entry(
        self,
        actor: str,
        action: str,
        target: str,
        outcome: Outcome,
        tenant: str,
        detail: str = "",
    ) -> dict[str, Any]:
        return {
            "tenant": tenant,
            "at": self._clock.now(),
            "actor": shortened(actor, 200),
            "action": action,
            "target": shortened(target, 200),
            "outcome": outcome,
            "detail": shortened(detail),
        }

    async def audit(self, limit: int = 100, *, tenant: str) -> list[AuditRow]:
        """Return the latest entries, the last one first."""
        rows = await self._db.read(lambda t: t.all(_ENTRIES, tenant_=tenant, limit_=limit))
        return [AuditRow(*row) for row in rows]

    async def owner_of(self, sweep: str, *, tenant: str) -> str | None:
        """Return who owns a sweep; "" = nobody, None = there is no such sweep."""
        row = await self._db.read(lambda t: t.one(_OWNER, tenant_=tenant, name_=sweep))
        return None if row is None else str(row[0])

    async def owners(self, *, tenant: str) -> dict[str, str]:
        """Return the owner of each sweep."""
        rows = await self._db.read(lambda t: t.all(_OWNERS, tenant_=tenant))
        return dict(rows)

    async def claim_sweep(self, sweep: str, owner: str, *, tenant: str) -> bool:
        """Own a sweep that nobody owns; False = somebody does."""
        return await self._db.write(
            lambda t: t.run(_CLAIM, tenant_=tenant, name_=sweep, owner=owner) > 0
        )
