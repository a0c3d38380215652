"""Attempts to take more than there is: a tenth over the limit, a pod for each."""

from __future__ import annotations

from typing import Any

from fde_ray.sandbox.probes.records import Attempt, Control, Group, Verdict

MIB = 1 << 20
MEMORY, SHIM_MEMORY = 128 * MIB, 96 * MIB
"""Of the two containers in these pods. gVisor holds only both together to their limit."""
DISK = 24 * MIB
"""Of a volume in them."""
SHARED_MEMORY = 64 * MIB
"""What runtimes give to /dev/shm."""
PROCESSES = 512
"""The least that a node gives to a pod (`podPidsLimit`), where it gives a limit."""
FILES = 20_000
PRINTED = 40 * MIB


def _attempt(
    name: str,
    what: str,
    call: str,
    amount: int,
    control: Control = Control.LARGER,
    limit_s: float = 90.0,
    **options: Any,
) -> Attempt:
    return Attempt(
        id=name, group=Group.RESOURCES, what=what, call=f"resources.{call}", control=control,
        expected=Verdict.CONTAINED, limit_s=limit_s, options=options | {"amount": amount},
    )  # fmt: skip


def _over(limit: int) -> int:
    return limit + limit // 10


ATTEMPTS = (
    _attempt(
        "fork_bomb", "processes without end", "processes", _over(PROCESSES), Control.OWN, 20.0
    ),
    _attempt("threads", "threads without end", "threads", _over(PROCESSES), Control.OWN, 20.0),
    _attempt("memory", "memory without end", "memory", _over(MEMORY + SHIM_MEMORY)),
    _attempt("disk", "a full workspace", "disk", _over(DISK), folder="/workspace", hold_s=45),
    _attempt("disk_of_tmp", "a full /tmp", "disk", _over(DISK), folder="/tmp", hold_s=45),
    _attempt(
        "shared_memory", "a full /dev/shm", "disk", _over(SHARED_MEMORY), Control.OWN,
        folder="/dev/shm", hold_s=1,
    ),
    _attempt(
        "inodes", "files without end", "inodes", FILES, Control.OWN, folder="/workspace", hold_s=12
    ),
    _attempt("descriptors", "descriptors without end", "descriptors", 70_000, Control.OWN),
    _attempt("log_flood", "a flood of output", "output", PRINTED, Control.OWN, hold_s=12),
)  # fmt: skip
