"""Which folders a session's box has, known before its shim is."""

from __future__ import annotations

from fde_ray.model.session import SessionInputs
from fde_ray.shim.boxes import BIN_AT

from .records import MountPoint


def mount_points(inputs: SessionInputs) -> tuple[MountPoint, ...]:
    """Return a place for each archive, for the folders that hold none, and for our commands."""
    points = {mount.at: mount.read_only for mount in inputs.mounts}
    for at in sorted({inputs.collect, inputs.workdir}):
        if not any(at == other or at.startswith(f"{other}/") for other in points):
            points[at] = False
    if inputs.evaluate:
        points[BIN_AT] = True
    return tuple(MountPoint(at=at, read_only=read_only) for at, read_only in points.items())
