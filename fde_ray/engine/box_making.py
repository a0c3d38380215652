"""What a box for the programs of a grade is, and the words in which it is told how one ended.

`box_keeping` decides when there is one.
"""

from __future__ import annotations

from typing import NamedTuple

from fde_ray.model.boxes import BOX_ROOT, MAX_DETAIL, BoxResult, BoxRole
from fde_ray.model.errors import shortened
from fde_ray.model.failures import FailureKind, known_kind
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.model.plan import RunPlan
from fde_ray.model.profile import Profile
from fde_ray.model.session import SessionInputs, SessionLimits
from fde_ray.model.states import Channel
from fde_ray.store.runs import AttemptRow

from .sessions import Loss

LIFE_S = 12 * 3600.0
"""A pod's deadline cannot be raised later; one that reaches it is followed by another."""
HEADROOM_BYTES = 256 << 20
"""For the runner, and for what a program uses up between two looks at it."""
SPARE_BYTES = 1 << 30
"""For a case's data, a route's output and the checker, beside the workspace; for what a program
writes, beside itself."""
PROCESSES = 256
KILLED = -9
_OF_AGENTS = (FailureKind.AGENT_ERROR, FailureKind.AGENT_RESOURCE)


class Room(NamedTuple):
    """What the largest program of a line may use, and what the largest folder takes up."""

    memory_bytes: int
    disk_bytes: int


def scoring_pods(profile: Profile) -> KubernetesProfile | None:
    """Return how boxes are made; None = no program runs in one."""
    made = profile.sandbox.kubernetes
    if profile.sandbox.runtime != "kubernetes" or made is None or made.scoring == "refuse":
        return None
    return made


def box_inputs(
    plan: RunPlan, role: BoxRole, subject: str, pods: KubernetesProfile, room: Room
) -> SessionInputs:
    """Return what a box of a grade is. It has no agent, no model and no prompt."""
    return SessionInputs(
        subject=subject,
        role=role,
        scaffold="evaluator",
        model="evaluator",
        prompt="",
        channel=Channel.TEXT,
        has_questions=False,
        workdir=BOX_ROOT,
        collect=BOX_ROOT,
        limits=SessionLimits(
            time_s=LIFE_S,
            cpu=pods.scoring_cpu,
            memory_bytes=room.memory_bytes + HEADROOM_BYTES,
            disk_bytes=room.disk_bytes + SPARE_BYTES,
            processes=PROCESSES,
            archive_bytes=0,
            pause_cap_s=plan.limits.pause_cap,
        ),
    )


def word_of(role: str, loss: Loss) -> BoxResult:
    """Return how the program ended that a lost box was at.

    One that used up the memory is told so, as if it had been seen in time.
    """
    detail = shortened(loss.detail)[:MAX_DETAIL]
    if _is_memory(loss):
        return BoxResult(reason="memory", detail=detail)
    if role == "exec" and loss.kind in _OF_AGENTS:
        return BoxResult(reason="exit", exit_code=KILLED, stderr=detail.encode())
    return lost(detail)


def loss_of(row: AttemptRow) -> Loss:
    """Return how a closed box was lost; a driver may have died before it could answer for it."""
    kind = FailureKind.GRADER_SANDBOX if row.failure is None else known_kind(row.failure)
    return Loss(kind, (row.detail or "its box is gone").removeprefix(f"{kind}: "))


def _is_memory(loss: Loss) -> bool:
    """Whether the kernel found the memory used up. A disk that is full holds what we laid out."""
    return loss.kind is FailureKind.AGENT_RESOURCE and loss.detail.startswith("memory:")


def lost(detail: str) -> BoxResult:
    return BoxResult(reason="lost", detail=shortened(detail)[:MAX_DETAIL])
