"""Which folders a session's box has, known before its shim is."""

from __future__ import annotations

from fde_ray.model.boxes import BOX_ROLES, BOX_ROOT
from fde_ray.model.session import SessionInputs

from .records import MountPoint


def mount_points(inputs: SessionInputs) -> tuple[MountPoint, ...]:
    """Return a place for each archive, and for the folders of work that are in none of them."""
    if inputs.role in BOX_ROLES:
        return (MountPoint(at=BOX_ROOT, read_only=True),)
    points = {mount.at: mount.read_only for mount in inputs.mounts}
    for at in sorted({inputs.collect, inputs.workdir}):
        if not any(at == other or at.startswith(f"{other}/") for other in points):
            points[at] = False
    return tuple(MountPoint(at=at, read_only=read_only) for at, read_only in points.items())
