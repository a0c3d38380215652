"""Submitted programs of executable cases, run on the hidden instances (cases.programs).

Each run is a box of its own that holds the program and one instance, and nothing that grades.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from fde_ray.cases.programs import (
    ENVIRONMENT,
    MAX_ANSWER_BYTES,
    Answers,
    Instance,
    ProgramRun,
    instance_names,
    program_argv,
    read_instance,
)
from fde_ray.cases.records import Program
from fde_ray.model.boxes import BOX_ROOT
from fde_ray.model.errors import SandboxError
from fde_ray.protocol.extraction import RESULT_FILE
from fde_ray.sandbox.records import Completed, Once
from fde_ray.shim.boxes import ENV_PYTHON

from .isolation import Isolation
from .workspace import regular_files

log = logging.getLogger(__name__)

PROGRAM = f"{BOX_ROOT}/program"
TRIES = 2
NOT_STARTED = ProgramRun(reason="size", exit_code=None)
_NOT_PROGRAM = (os.fsencode(RESULT_FILE), b"__pycache__")


async def answered(
    sandbox: Isolation,
    program: Program,
    submission: Path,
    sealed: Path,
    scratch: Path,
    *,
    max_bytes: int,
) -> Path:
    """Return a folder below `scratch` with the answers of a submitted program.

    sealed: the case's sealed folder. max_bytes: of all files of the submission; of a larger one
    nothing is run. How a program ends is a fact for the evaluator; a run that the sandbox lost is a
    SandboxError.
    """
    own, folder = _made(scratch / "program"), _made(scratch / "answers")
    files = await asyncio.to_thread(_program_files, submission)
    is_there = os.fsencode(program.entry) in files
    answers = Answers(folder, program.entry if is_there else None)
    names = await asyncio.to_thread(instance_names, sealed) if is_there else []
    fits = await asyncio.to_thread(_copied, files, own, max_bytes)
    for number, name in enumerate(names):
        if not fits:
            answers.add(name, NOT_STARTED)
            continue
        once = program_once(program, own, await asyncio.to_thread(read_instance, sealed, name))
        completed = await _completed(sandbox, once, tries=1 if number == 0 else TRIES)
        answers.add(name, _noted(name, completed), completed.stdout)
    answers.close()
    return folder


async def _completed(sandbox: Isolation, once: Once, tries: int) -> Completed:
    """Where other runs have ended, a lost one need not cost them: it is made again."""
    for _ in range(1, tries):
        try:
            return await sandbox.run_once(once)
        except SandboxError as error:
            log.warning("program_run_lost", extra={"reason": error.detail})
    return await sandbox.run_once(once)


def _noted(instance: str, completed: Completed) -> ProgramRun:
    run = ProgramRun(reason=completed.reason, exit_code=completed.exit_code)
    log.info(
        "program_run",
        extra={
            "instance": instance,
            "reason": run.reason,
            "exit_code": run.exit_code,
            "seconds": round(completed.duration_s, 3),
        },
    )
    return run


def program_once(program: Program, own: Path, instance: Instance) -> Once:
    """Return one run of the program in folder `own`."""
    return Once(
        argv=program_argv(ENV_PYTHON, PROGRAM, program.entry),
        mounts=((str(own.resolve()), PROGRAM, True),),
        timeout_s=program.instance_s,
        memory_bytes=program.instance_mib << 20,
        stdout_bytes=MAX_ANSWER_BYTES,
        env=dict(ENVIRONMENT),
        stdin=instance.content,
        untrusted=True,
    )


def _made(folder: Path) -> Path:
    folder.mkdir()
    folder.chmod(0o755)
    return folder


def _program_files(submission: Path) -> dict[bytes, bytes]:
    """Return name -> path of the plain files of a submission but the extractor's report.

    The report would tell one extractor's program from the other's.
    """
    return {
        relative: path
        for relative, path in regular_files(submission)
        if not set(relative.split(b"/")) & set(_NOT_PROGRAM)
    }


def _copied(files: Mapping[bytes, bytes], own: Path, max_bytes: int) -> bool:
    """Copy the files to folder `own`; False, and no copy, when they are too large."""
    if sum(os.path.getsize(path) for path in files.values()) > max_bytes:
        return False
    for relative, path in files.items():
        target = os.path.join(os.fsencode(own), relative)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(path, target)
    return True
