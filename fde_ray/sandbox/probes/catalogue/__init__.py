"""Every attempt, in the order of the table. A group is a module; `ATTEMPTS` is all of them."""

from __future__ import annotations

from fde_ray.sandbox.probes.records import Attempt, Group

from . import deadline, grader, hidden, host, network, plane, resources, workspace

ATTEMPTS: tuple[Attempt, ...] = (
    *network.ATTEMPTS,
    *host.ATTEMPTS,
    *hidden.ATTEMPTS,
    *plane.ATTEMPTS,
    *resources.ATTEMPTS,
    *workspace.ATTEMPTS,
    *grader.ATTEMPTS,
    *deadline.ATTEMPTS,
)


def of_group(group: Group) -> tuple[Attempt, ...]:
    return tuple(attempt for attempt in ATTEMPTS if attempt.group is group)
