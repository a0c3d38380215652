"""Where the embedded system keeps its state on this machine."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fde_ray.model.errors import UserError
from fde_ray.model.profile import Profile
from fde_ray.model.session import SessionRole

_SOCKET_PATH_LIMIT = 100
"""sun_path holds 108 bytes; some are left for the name."""


class Home(NamedTuple):
    """Paths below one state folder. Sockets may lie elsewhere, where their paths are short."""

    root: Path
    sockets: Path

    @property
    def database(self) -> Path:
        return self.root / "runs.sqlite"

    @property
    def objects(self) -> Path:
        return self.root / "objects"

    @property
    def sandboxes(self) -> Path:
        return self.root / "sandboxes"

    @property
    def scratch(self) -> Path:
        return self.root / "scratch"

    @property
    def reports(self) -> Path:
        return self.root / "reports"

    @property
    def run_plane(self) -> Path:
        return self.sockets / "run.sock"

    @property
    def control_plane(self) -> Path:
        return self.sockets / "control.sock"

    @property
    def grade_plane(self) -> Path:
        return self.sockets / "grade.sock"


def home_of(profile: Profile, environ: Mapping[str, str]) -> Home:
    """Return the state folder, made with mode 0700; UserError when it cannot be written."""
    chosen = profile.home or environ.get("FDE_RAY_HOME") or "~/.fde-ray"
    root = Path(chosen).expanduser().absolute()
    home = Home(root, _sockets(root))
    try:
        for folder in (root, home.sockets, home.objects, home.sandboxes, home.scratch):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot use the state folder {root}: {error.strerror}; set FDE_RAY_HOME"
        ) from error
    if not os.access(root, os.W_OK):
        raise UserError(f"the state folder {root} is not writable; set FDE_RAY_HOME")
    return home


def plane_address(profile: Profile, home: Home, role: SessionRole) -> str:
    """Return where sessions of this role reach their plane."""
    if role == "solve":
        return profile.planes.run or f"unix:{home.run_plane}"
    return profile.planes.grade or f"unix:{home.grade_plane}"


def _sockets(root: Path) -> Path:
    wanted = root / "sockets"
    if len(os.fsencode(wanted)) < _SOCKET_PATH_LIMIT:
        return wanted
    short = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"fde-ray-{os.getuid()}-{short}"
