"""A box of the first run's grade, and programs for it."""

from __future__ import annotations

from typing import Any

from fde_ray.model.boxes import BoxFolder, BoxJob, BoxRole, box_line, box_owner, box_subject
from fde_ray.model.states import Scope
from tests.gateway.planes import Bench
from tests.store.builders import GRADE, make_inputs, run_id

OWNER = box_owner(run_id(1), GRADE)
LINE, PROGRAMS = box_line(OWNER, "score"), box_line(OWNER, "exec")
BOX = box_subject(LINE, 1)


def program(*keys: str, **changes: Any) -> BoxJob:
    """Return a program that reads these objects."""
    fields: dict[str, Any] = {
        "argv": ("/usr/bin/python3",),
        "workdir": "/home/agent",
        "folders": tuple(BoxFolder(at=f"/grader/{n}", key=key) for n, key in enumerate(keys)),
        "timeout_s": 60,
        "memory_bytes": 1 << 30,
        "file_bytes": 1 << 20,
        "stdout_bytes": 1 << 20,
        "stderr_bytes": 1 << 10,
    }
    return BoxJob(**fields | changes)


async def began(bench: Bench, subject: str = BOX, role: BoxRole = "score") -> str:
    """Return the token of a box that has begun."""
    inputs = make_inputs(subject, role=role)
    await bench.store.open_box(run_id(1), GRADE, bench.epoch, inputs)
    token = await bench.token(subject, Scope(role))
    await bench.plane.started(token)
    return token
