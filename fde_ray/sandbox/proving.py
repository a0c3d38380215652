"""What has to be seen of a sandbox before a sweep is given to it, and while sessions start."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from fde_ray.model.base import Record
from fde_ray.model.planes import PlanesProfile

from .interface import Sandbox
from .records import SandboxFacts


@runtime_checkable
class Fenced(Protocol):
    """A sandbox whose walls are others' work, so that they have to be tried."""

    async def prove_isolation(self, planes: PlanesProfile) -> None:
        """Return once sessions were seen to reach their planes and nothing else.

        UserError says what they reached, or why that is not known.
        """
        ...


class Decoys(Record):
    """Which addresses that sessions must not reach were alive outside their fence."""

    at: float
    """Seconds since the epoch."""
    alive: tuple[str, ...]
    silent: tuple[str, ...]


@runtime_checkable
class Baited(Protocol):
    """A sandbox whose sessions are shown to be fenced in by what they cannot reach."""

    async def decoys(self) -> Decoys:
        """Return what is alive of that now; SandboxError when nothing is, so that a session's
        gate would prove nothing."""
        ...


async def decoys_of(sandbox: Sandbox) -> Decoys | None:
    """Return what was shown to be alive while a session starts; None = its gate needs nothing."""
    return await sandbox.decoys() if isinstance(sandbox, Baited) else None


async def fit_for_sweeps(sandbox: Sandbox, planes: PlanesProfile) -> SandboxFacts:
    """Return what sessions run in; UserError with the remedy when it does not hold them."""
    facts = await sandbox.probe()
    if isinstance(sandbox, Fenced):
        await sandbox.prove_isolation(planes)
    return facts
