"""What `results verify` and `results compact` do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from . import bucket
from .progress import ProgressLine

if TYPE_CHECKING:
    from fde_ray.store.compaction import Compaction
    from fde_ray.store.results import Finding


async def checked_bucket(
    source: bucket.Source, sweep: str, *, parts: bool
) -> tuple[int, list[Finding]]:
    """Return how many results are sound, and all that is wrong. parts: workspaces as well."""
    from fde_ray.model.wording import counted
    from fde_ray.store.errors import SweepMissing
    from fde_ray.store.pulls.checking import check_parts
    from fde_ray.store.results import read_results
    from fde_ray.store.side_by_side import side_by_side
    from fde_ray.store.sweep_runs import read_runs

    sound, runs, findings = 0, list[str](), list["Finding"]()
    async with bucket.opened(source) as (objects, tenant):
        async for read in read_results(objects, tenant, sweep):
            if read.mark is not None:
                runs.append(read.mark.run_id)
            if read.finding is not None:
                findings.append(read.finding)
            elif read.result is not None:
                sound += 1
        if not runs and not findings and await read_runs(objects, tenant, sweep) is None:
            raise SweepMissing(tenant, sweep)
        if parts:
            with ProgressLine() as line:
                checks = side_by_side(
                    dict.fromkeys(runs), lambda run: check_parts(objects, tenant, run)
                )
                number = 0
                async for found in checks:
                    findings += found
                    number += 1
                    line.tell(f"{number}/{counted(len(runs), 'run')} read")
    return sound, findings


def checked_folder(folder: Path) -> tuple[int, list[Finding]]:
    """Return how many pulled files have the bytes that were fetched, and those that have not."""
    from fde_ray.model.errors import UserError
    from fde_ray.store.pulls.keeping import is_whole, receipts_of
    from fde_ray.store.results import Finding

    receipts = receipts_of(folder)
    if not receipts:
        raise UserError(f"nothing was pulled into {folder}; `fde-ray results pull` does it")
    findings = [
        Finding(key=receipt.path, kind="hash_differs", reason="the file is gone or was changed")
        for receipt in receipts
        if not is_whole(folder, receipt)
    ]
    return len(receipts) - len(findings), findings


async def compacted(source: bucket.Source, sweep: str) -> Compaction:
    from fde_ray.store.compaction import compact

    async with bucket.opened(source, writing=True) as (objects, tenant):
        return await compact(objects, tenant, sweep)
