"""What a member of the fleet is told at its birth: small plain data, the same at every restart."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import Field

from fde_ray.model.base import Record
from fde_ray.model.profile import Profile

PoolKind = Literal["customer", "detector", "judge"]
POOL_KINDS: tuple[PoolKind, ...] = ("customer", "detector", "judge")
STEWARD = "steward"


class FleetConfig(Record):
    profile: Profile
    """With an absolute `home`."""
    unsafe: bool
    generation: int = Field(ge=1)
    sweeps: tuple[str, ...] | None
    """Whose queued runs are admitted; None = of all sweeps."""
    supervisors: int = Field(ge=1)

    @property
    def home(self) -> Path:
        return Path(str(self.profile.home))

    @property
    def namespace(self) -> str:
        """The name that no fleet of another store or generation has."""
        return f"fde-ray-{store_name(self.profile)}-{self.generation}"


def store_name(profile: Profile) -> str:
    """Return a short name of the run store that a profile with an absolute `home` leads to."""
    place = profile.home if profile.store is None else profile.store.url
    return hashlib.sha256(str(place).encode()).hexdigest()[:12]


def supervisor_name(index: int) -> str:
    return f"sup-{index}"


def pool_name(kind: PoolKind, index: int) -> str:
    return f"{kind}-{index}"
