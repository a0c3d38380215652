"""Whether the reserve holds the pods that grading needs at once.

Grading pods take no more than their reserve. Where it is full of scoring pods, each of them waits
for an extractor that waits for their places.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.model.wording import counted
from fde_ray.sandbox.kubernetes.contract import PodRole

from .settings import FenceSettings


class Reserve(NamedTuple):
    """What grading pods may take together; None = whatever nodes have."""

    pods: int
    cpu: float | None = None
    memory_bytes: int | None = None


class Grading(NamedTuple):
    """How many grades are in work at once, and what each has."""

    at_once: int
    roles: tuple[PodRole, ...]
    """Of the pods that a grade has at the same time."""
    cpu: float
    """Without the extractor's agent, which is as large as the run that it reads."""
    memory_bytes: int
    """Of the shims alone: an evaluator's is the case's."""

    @property
    def pods(self) -> int:
        return self.at_once * len(self.roles)


class Shortage(NamedTuple):
    detail: str
    remedy: str


def grading_of(profile: KubernetesProfile, at_once: int, *, has_programs: bool) -> Grading:
    """has_programs: whether the deliverable of any case is a program, which runs in a pod too."""
    boxes: list[PodRole] = []
    if profile.scoring == "pods":
        boxes.append("score")
    if profile.scoring != "refuse" and has_programs:
        boxes.append("exec")
    roles: tuple[PodRole, ...] = ("extract", *boxes)
    cpu = len(roles) * profile.shim_cpu + len(boxes) * profile.scoring_cpu
    return Grading(at_once, roles, cpu, len(roles) * profile.shim_memory)


def reserve_of(settings: FenceSettings) -> Reserve:
    cpu, gib = settings.cpu, settings.memory_gib
    return Reserve(
        settings.reserve,
        None if cpu is None else settings.kept(cpu),
        None if gib is None else settings.kept(gib) << 30,
    )


def grades_held(reserve: Reserve, grading: Grading) -> int:
    """Return how many grades have all their pods there at once, as far as is known."""
    held = reserve.pods // len(grading.roles)
    if reserve.cpu is not None:
        held = min(held, _times(reserve.cpu, grading.cpu))
    if reserve.memory_bytes is not None:
        held = min(held, _times(reserve.memory_bytes, grading.memory_bytes))
    return held


def shortage(reserve: Reserve, grading: Grading) -> Shortage | None:
    """Return what is missing; None = the grades that are in work at once have their pods."""
    held = grades_held(reserve, grading)
    if held >= grading.at_once:
        return None
    who = "a grade takes" if grading.at_once == 1 else f"{grading.at_once} grades at once take"
    taken, kept, options = _lacking(reserve, grading)
    remedy = f"give `cluster render` {options}"
    if held:
        remedy += f", or set concurrency.gradings to {held}"
    are = "is" if kept == "1" else "are"
    return Shortage(f"{who} {taken}, and {kept} {are} kept for grading", remedy)


def _lacking(reserve: Reserve, grading: Grading) -> tuple[str, str, str]:
    """Return what is taken of that which is short, what is kept of it, and what gives more."""
    if reserve.pods < grading.pods:
        taken = f"{counted(grading.pods, 'pod')} ({', '.join(grading.roles)})"
        return taken, str(reserve.pods), f"--grading-pods {grading.pods}"
    is_one = grading.at_once == 1
    whose, extractors = ("its", "extractor") if is_one else ("their", "extractors")
    cpu = grading.at_once * grading.cpu
    if reserve.cpu is not None and reserve.cpu <= cpu:
        taken = f"{cpu:g} core{'' if cpu == 1 else 's'} without {whose} {extractors}"
        return taken, f"{reserve.cpu:g}", "more --cpu or --grading-pods"
    gib = grading.at_once * grading.memory_bytes / 2**30
    taken, kept = f"{gib:g} GiB without {whose} programs", (reserve.memory_bytes or 0) / 2**30
    return taken, f"{kept:g}", "more --memory or --grading-pods"


def _times(whole: float, part: float) -> int:
    """Return how often the part goes in with something left over, which the extractor takes."""
    return max(0, ceil(whole / part) - 1)
