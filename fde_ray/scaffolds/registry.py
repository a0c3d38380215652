"""What is known of each scaffold outside of its sandbox."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fde_ray import shim
from fde_ray.model.errors import UserError
from fde_ray.model.specs import System
from fde_ray.model.states import Channel
from fde_ray.shim.agents import AGENTS

OWN_SOURCES = ("agents/__init__.py", "agents/minimal.py", "agents/streams.py", "agents/tools.py")
"""What the behaviour of our own agents depends on."""
OFFLINE = "offline/"


@dataclass(frozen=True)
class Scaffold:
    name: str
    argv: tuple[str, ...]
    """Arguments of the zipapp that start the agent program inside the sandbox."""
    channel: Channel
    """How its questions reach us unless a system says otherwise (protocol rule 9)."""
    state_dirs: tuple[str, ...]
    """Top-level names in the workspace that are its own and never a deliverable."""
    needs: tuple[str, ...] = ()
    """Programs that must be in the sandbox besides bash and Python."""
    model_prefix: str = ""
    """What the name of its model must begin with."""

    @property
    def lock_hash(self) -> str:
        """SHA-256 of what this scaffold runs; part of every run id."""
        return _own_lock()

    def check(self, system: System) -> None:
        """Raise UserError unless this scaffold can run the system."""
        if not system.model.startswith(self.model_prefix):
            raise UserError(
                f"system {system.name!r}: scaffold {self.name!r} needs a model named "
                f"{self.model_prefix}<probe>, not {system.model!r}"
            )


@cache
def _own_lock() -> str:
    root = Path(shim.__file__).parent
    whole = hashlib.sha256()
    for name in OWN_SOURCES:
        whole.update(f"{name}\0{hashlib.sha256((root / name).read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def _own(name: str, model_prefix: str = "") -> Scaffold:
    agent = AGENTS[name]
    return Scaffold(
        name, agent.argv, Channel.TEXT, agent.state_dirs, ("bash",), model_prefix=model_prefix
    )


SCAFFOLDS: dict[str, Callable[[], Scaffold]] = {
    "minimal": lambda: _own("minimal"),
    "scripted": lambda: _own("scripted", OFFLINE),
}


def scaffold(name: str) -> Scaffold:
    """Return a scaffold; raise UserError that lists the known ones."""
    make = SCAFFOLDS.get(name)
    if make is None:
        known = ", ".join(sorted(SCAFFOLDS))
        raise UserError(f"unknown scaffold {name[:60]!r}; known: {known}")
    return make()
