"""Every effect of a driver passes through here, and may go wrong on its way.

An effect is a call of an async method of an interface: run store, object store, sandbox, model
provider. The methods are found by reflection, so that a new one is covered without a change here.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from enum import StrEnum
from functools import cached_property, wraps
from typing import Any, NamedTuple, Protocol

LIFECYCLE = frozenset({"open", "close", "aclose"})


class Position(StrEnum):
    BEFORE = "before"
    """The effect never happens."""
    REPLY_LOST = "reply_lost"
    """It happens, and its caller never hears of it."""
    AFTER = "after"
    """It happens, its caller hears of it, and then the trouble begins."""


class Effect(NamedTuple):
    stage: str
    """The phase of the run when the effect began."""
    interface: str
    method: str

    def __str__(self) -> str:
        return f"{self.stage}:{self.interface}.{self.method}"


class Gate(Protocol):
    """Lets effects pass, or raises in their place."""

    def passing(self, interface: str, method: str) -> AbstractContextManager[None]: ...


def effects_of(target: object) -> list[str]:
    """Return the names of the async methods that an interface offers."""
    names = [name for name in dir(type(target)) if not name.startswith("_")]
    return [n for n in names if n not in LIFECYCLE and _is_async(getattr(type(target), n))]


def gated(gate: Gate, interface: str, method: Any) -> Any:
    """Return the bound async method behind the gate."""
    name = method.__name__
    if inspect.isasyncgenfunction(method):

        @wraps(method)
        async def stream(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            with gate.passing(interface, name):
                async for item in method(*args, **kwargs):
                    yield item

        return stream

    @wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        with gate.passing(interface, name):
            return await method(*args, **kwargs)

    return call


def fence(gate: Gate, interface: str, target: object) -> None:
    """Put the methods of this very object behind the gate."""
    for name in effects_of(target):
        setattr(target, name, gated(gate, interface, getattr(target, name)))


class Fenced:
    """Another object's methods behind the gate; that object itself stays as it is."""

    def __init__(self, gate: Gate, interface: str, target: object) -> None:
        self._gate, self._interface, self._target = gate, interface, target

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(effects_of(self._target))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return gated(self._gate, self._interface, found) if name in self._names else found


def _is_async(found: object) -> bool:
    return inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found)
