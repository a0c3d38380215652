"""What a lab notes about itself so that it is found again, and taken down, by another command."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Network
from pathlib import Path

from pydantic import ValidationError

from fde_ray.model.base import Record
from fde_ray.model.errors import UserError

from .layout import Layout
from .network import Network


class LabState(Record):
    """block: its addresses; made: folders of the machine that it had to make, outermost first."""

    block: IPv4Network
    made: list[str] = []

    @property
    def network(self) -> Network:
        return Network(self.block)


def _file(layout: Layout) -> Path:
    return layout.home / "state.json"


def write_state(layout: Layout, state: LabState) -> None:
    layout.home.mkdir(mode=0o755, parents=True, exist_ok=True)
    new = _file(layout).with_suffix(".new")
    new.write_text(state.model_dump_json())
    new.rename(_file(layout))


def read_state(layout: Layout) -> LabState | None:
    """Return None when there is no lab; raise when its note cannot be read."""
    try:
        return LabState.model_validate_json(_file(layout).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise UserError(f"{_file(layout)} cannot be read; run `make lab-down`") from error


@contextmanager
def locked(layout: Layout, what: str = "lab") -> Iterator[None]:
    """Hold the lab, or what of it is named: up, down and the like wait for each other."""
    layout.cache.mkdir(parents=True, exist_ok=True)
    lock = layout.cache / f"{what}.lock"
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"lab: another command holds {lock}; waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
