"""A sweep in a bucket, written as the engine does, with everything that can be pulled of it."""

from __future__ import annotations

import gzip
import io
import tarfile

from fde_ray.model.base import canonical_json, sha256_hex
from fde_ray.model.plan import RunPlan
from fde_ray.model.result import AttemptNote, RunResult
from fde_ray.model.session import Commit, Part
from fde_ray.model.states import GradeState, Phase
from fde_ray.store.objects import ObjectStore, layout
from fde_ray.store.results import Mark, write_mark
from fde_ray.store.sweep_runs import write_runs
from tests.store.builders import GRADE, SHA, make_plan, make_result, run_id

TENANT, SWEEP = "local", "demo"
PARTS = 3


def plan_of(n: int) -> RunPlan:
    """Odd runs are of case 017, even ones of 036."""
    return make_plan(n, sweep=SWEEP).evolve(case_id="017" if n % 2 else "036", repeat=n)


def result_of(n: int) -> RunResult:
    return make_result(n).evolve(
        case_id="017" if n % 2 else "036",
        repeat=n,
        attempts=(
            AttemptNote(attempt=1, started_at=1.0, ended_at=2.0, kind="shim_lost"),
            AttemptNote(attempt=2, started_at=3.0, ended_at=4.0),
        ),
    )


async def put_run(objects: ObjectStore, n: int, *, result: bool = True) -> None:
    """Write a run whose second attempt counts; without a result it was set aside."""
    for attempt in (1, 2):
        await put_attempt(objects, n, attempt)
    data = canonical_json(result_of(n)).encode()
    if result:
        await objects.create(layout.result_key(TENANT, run_id(n), GRADE), data)
        ballots = b"[]"
        key = layout.judging_key(TENANT, run_id(n), GRADE, "panel", sha256_hex(ballots))
        await objects.create(key, ballots)
        route = f'{{"route":{n}}}'.encode()
        key = layout.extraction_key(TENANT, run_id(n), GRADE, 0, sha256_hex(route), "route.json")
        await objects.create(key, route)
        extraction = f"{run_id(n)}/{GRADE}/0.1"
        await put_workspace(objects, extraction, f"output {n}".encode())
        for subject, part in ((extraction, "all"), (f"{run_id(n)}.2", f"grade-{GRADE[:12]}")):
            key = layout.calls_key(TENANT, subject, part, 0)
            await objects.create(key, gzip.compress(b"{}\n"))
    mark = Mark(
        run_id=run_id(n),
        grade_id=GRADE,
        phase=Phase.DONE if result else Phase.QUARANTINED,
        grade=GradeState.SCORED if result else GradeState.NONE,
        result_sha256=sha256_hex(data) if result else None,
    )
    await write_mark(objects, TENANT, SWEEP, mark)


async def put_attempt(objects: ObjectStore, n: int, attempt: int) -> None:
    subject = f"{run_id(n)}.{attempt}"
    await objects.create(layout.start_key(TENANT, subject), b"{}")
    await objects.create(layout.dialogue_key(TENANT, subject), f"{subject}\n".encode())
    await objects.create(layout.calls_key(TENANT, subject, "all", 0), gzip.compress(b"{}\n"))
    await objects.create(layout.events_key(TENANT, subject, 7), gzip.compress(b"{}\n"))
    await put_workspace(objects, subject, f"work {n} {attempt}".encode())
    end = canonical_json({"subject": subject, "snapshot": "final"}).encode()
    await objects.create(layout.end_key(TENANT, subject), end)


async def put_workspace(objects: ObjectStore, subject: str, content: bytes) -> None:
    data = packed(content)
    size = -(-len(data) // PARTS)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    parts = tuple(
        Part(seq=seq, sha256=sha256_hex(piece), size=len(piece)) for seq, piece in enumerate(pieces)
    )
    for part, piece in zip(parts, pieces, strict=True):
        key = layout.part_key(TENANT, subject, "final", part.seq, part.sha256)
        await objects.create(key, piece)
    commit = Commit(
        snapshot="final", parts=parts, tree_hash=SHA, files=1, size_bytes=len(content), final=True
    )
    key = layout.manifest_key(TENANT, subject, "final")
    await objects.create(key, canonical_json(commit).encode())


def packed(content: bytes) -> bytes:
    page = io.BytesIO()
    with tarfile.open(fileobj=page, mode="w:gz") as tar:
        member = tarfile.TarInfo("work.txt")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return page.getvalue()


async def put_sweep(objects: ObjectStore, runs: int = 4, *, planned: bool = True) -> None:
    """Write `runs` runs, of which the last was set aside; one more is planned."""
    if planned:
        plans = [plan_of(n) for n in range(1, runs + 2)]
        await write_runs(objects, TENANT, SWEEP, plans)
    for n in range(1, runs + 1):
        await put_run(objects, n, result=n < runs)
