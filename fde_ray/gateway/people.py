"""Who asks the control-plane: a user with a token of ours, or a bearer of an identity provider."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Literal, NamedTuple, Protocol

from fde_ray.model.errors import Refusal, UserError
from fde_ray.model.failures import Fault
from fde_ray.store.runs import RunStore
from fde_ray.store.runs import people as stored

PREFIX = "fdeu_"
MAX_BEARER_CHARS = 16_384
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")


class Person(NamedTuple):
    name: str
    role: Literal["researcher", "admin"]

    def may_change(self, owner: str) -> bool:
        """Whether the sweeps of `owner` ("" = nobody's) are this person's to change."""
        return self.role == "admin" or self.name == owner


OPERATOR = Person(stored.OPERATOR, "admin")
"""Whoever reaches the private socket of a state folder."""


class Door(Protocol):
    async def person(self, bearer: str) -> Person:
        """Return who it is; Refusal 401 for a bearer that is not good."""
        ...


def new_token() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def token_hash(token: str) -> str:
    """Return what is kept of a token; it has 256 random bits, so that one hash is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


def checked_name(name: str) -> str:
    """UserError unless it is a name that a user can have."""
    if not _NAME.fullmatch(name):
        raise UserError("a user's name has 1 to 40 of a-z, 0-9, dot, dash and underscore")
    return name


class TokenDoor:
    """Knows the users of one tenant; `others` is asked about bearers that are not ours."""

    def __init__(self, store: RunStore, tenant: str, others: Door | None = None) -> None:
        self._store, self._tenant, self._others = store, tenant, others

    async def person(self, bearer: str) -> Person:
        if len(bearer) > MAX_BEARER_CHARS:
            raise not_valid()
        if not bearer.startswith(PREFIX):
            if self._others is None:
                raise not_valid()
            return await self._others.person(bearer)
        user = await self._store.user_of_token(token_hash(bearer), tenant=self._tenant)
        if user is None:
            raise not_valid()
        return Person(user.name, user.role)


def not_valid(reason: str = "the bearer is not valid") -> Refusal:
    return Refusal(401, Fault.AGENT, reason, code="token_invalid")
