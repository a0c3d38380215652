"""Deliverables that have the target form already need no extractor (protocol rule 24)."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from fde_ray.cases.records import SubmissionSchema
from fde_ray.model.errors import EvaluatorFault
from fde_ray.model.grading import Evaluation, ExtractionReport, Provenance, Route, SourceRef
from fde_ray.protocol.votes import PASSTHROUGH, PASSTHROUGH_ROUTE

from .extraction import EvaluatorException, RouteFacts, output_hash, route_from
from .workspace import emptied, file_sha256, regular_files

MAX_FILES = 20_000
MAX_MODULES, MAX_MODULE_BYTES = 200, 4 << 20
_ARTIFACT = re.compile(r"[\w./\\-]*\w\.[A-Za-z][A-Za-z0-9]{0,9}\b")
_SCRIPTS = (".py", ".sh", ".ipynb", ".r", ".jl", ".md")


def candidate(workspace: Path, schema: SubmissionSchema, summary: str) -> Path | None:
    """Return the folder that holds every target file, or None when a panel must look.

    There must be exactly one such folder outside `data/`, no second copy of a target file
    elsewhere, and no other file of the workspace that the summary names.
    """
    files = _own_files(workspace)
    if files is None:
        return None
    targets = {file.name for file in schema.files}
    found = [path for path in files if os.path.basename(path) in targets]
    folders = {os.path.dirname(path) for path in found}
    if len(found) != len(targets) or len(folders) != 1:
        return None
    if any(path in files and path not in found for path in _named(summary, files, targets)):
        return None
    return workspace / folders.pop()


def _own_files(workspace: Path) -> set[str] | None:
    files = set()
    for relative, _ in regular_files(workspace):
        path = os.fsdecode(relative)
        if path.split("/")[0] != "data":
            files.add(path)
        if len(files) > MAX_FILES:
            return None
    return files


def _named(summary: str, files: set[str], targets: set[str]) -> set[str]:
    """Return files of the workspace that the summary mentions and that may be deliverables."""
    code = {os.path.splitext(name)[1] for name in targets}
    by_name: dict[str, set[str]] = {}
    for path in files:
        by_name.setdefault(os.path.basename(path), set()).add(path)
    found: set[str] = set()
    for word in _ARTIFACT.findall(summary):
        base = word.replace("\\", "/").rsplit("/", 1)[-1]
        suffix = os.path.splitext(base)[1].lower()
        if suffix not in _SCRIPTS or suffix in code:
            found |= by_name.get(base, set())
    return found


def _modules(folder: Path, workspace: Path) -> set[str] | None:
    """Return the Python files below the folder of a program, as names in it; None if they are too
    many to be its modules alone."""
    found, size = set(), 0
    is_top = folder == workspace
    for relative, path in regular_files(folder):
        name = os.fsdecode(relative)
        parts = name.split("/")
        is_data = is_top and parts[0] == "data"
        if is_data or not name.endswith(".py") or any(part.startswith(".") for part in parts):
            continue
        found.add(name)
        size += os.path.getsize(path)
        if len(found) > MAX_MODULES or size > MAX_MODULE_BYTES or not name.isprintable():
            return None
    return found


def _copied(
    names: Sequence[str], folder: Path, workspace: Path, output: Path
) -> dict[str, tuple[SourceRef, ...]]:
    """Copy the named files of `folder` byte for byte, and nothing else; return where each comes
    from."""
    sources: dict[str, tuple[SourceRef, ...]] = {}
    emptied(output)
    for name in names:
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, output / name)
        path = str((folder / name).relative_to(workspace))
        sources[name] = (SourceRef(path=path, sha256=file_sha256(folder / name)),)
    return sources


async def passthrough_route(
    workspace: Path,
    schema: SubmissionSchema,
    summary: str,
    output: Path,
    evaluate: Callable[[Path], Awaitable[Evaluation]],
    evaluator_exception: EvaluatorException = "fault",
    *,
    executable: bool = False,
) -> Route | None:
    """Return the route `passthrough`, or None when the panel must run.

    output: where the target files are copied to; made anew. executable: a program is wanted, which
    takes the modules beside it along. A deliverable that the evaluator finds structurally wrong, or
    fails on, goes to the panel.
    """
    # Workspaces may be large: others go on meanwhile.
    folder = await asyncio.to_thread(candidate, workspace, schema, summary)
    if folder is None:
        return None
    names = {file.name for file in schema.files}
    if executable:
        modules = await asyncio.to_thread(_modules, folder, workspace)
        if modules is None:
            return None
        names |= modules
    sources = await asyncio.to_thread(_copied, sorted(names), folder, workspace, output)
    try:
        evaluation = await evaluate(output)
    except EvaluatorFault:
        return None
    if evaluation.stage == "structure":
        return None
    report = ExtractionReport(
        status="success",
        notes="already in the target form",
        files_found=tuple(sources),
        files_normalized=tuple(sources),
        sources=sources,
    )
    facts = RouteFacts(
        route=PASSTHROUGH_ROUTE,
        model=PASSTHROUGH,
        report=report,
        output_sha256=await asyncio.to_thread(output_hash, output),
        provenance=Provenance(verdict="clean", findings=("copied byte for byte",)),
        evaluation=evaluation,
    )
    return route_from(facts, evaluator_exception)
