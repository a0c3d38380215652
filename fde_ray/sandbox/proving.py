"""What has to be seen of a sandbox before a sweep is given to it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

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


async def fit_for_sweeps(sandbox: Sandbox, planes: PlanesProfile) -> SandboxFacts:
    """Return what sessions run in; UserError with the remedy when it does not hold them."""
    facts = await sandbox.probe()
    if isinstance(sandbox, Fenced):
        await sandbox.prove_isolation(planes)
    return facts
