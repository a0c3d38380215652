"""Runs a case's own programs on its instances, in the shape in which agents' are run.

On the author's machine, without a sandbox: as little as the evaluator beside them needs one.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fde_ray.cases.authoring.mutants import files_under
from fde_ray.cases.authoring.probe_runs import write_files
from fde_ray.cases.programs import (
    ENVIRONMENT,
    MAX_ANSWER_BYTES,
    Answers,
    Instance,
    ProgramRun,
    program_argv,
    read_instances,
)
from fde_ray.cases.records import Case, Program

MAX_FILE_BYTES = 256 << 20


def answered_files(case: Case, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return what the evaluator of an executable case reads when this is delivered."""
    program = case.meta.program
    if program is None:
        raise ValueError(f"case {case.case_id} wants no program")
    is_there = program.entry in files
    with tempfile.TemporaryDirectory(prefix="fde-ray-program-") as scratch:
        own, answers = Path(scratch) / "program", Path(scratch) / "answers"
        own.mkdir()
        answers.mkdir()
        write_files(own, files)
        kept = Answers(answers, program.entry if is_there else None)
        for instance in read_instances(case.root / "sealed") if is_there else ():
            kept.add(instance.name, *_run(program, own, instance))
        kept.close()
        return files_under(answers)


def _run(program: Program, own: Path, instance: Instance) -> tuple[ProgramRun, bytes]:
    with (
        tempfile.TemporaryDirectory(prefix="fde-ray-home-") as home,
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as output,
    ):
        given.write(instance.content)
        given.seek(0)
        process = subprocess.Popen(
            [*_limiter(program), *program_argv(sys.executable, str(own), program.entry)],
            stdin=given,
            stdout=output,
            stderr=subprocess.DEVNULL,
            cwd=home,
            env={**ENVIRONMENT, "HOME": home},
            start_new_session=True,
        )
        run = _ended(process, program.instance_s)
        if output.seek(0, os.SEEK_END) > MAX_ANSWER_BYTES:
            run = ProgramRun(reason="output", exit_code=None)
        output.seek(0)
        return run, output.read(MAX_ANSWER_BYTES)


def _limiter(program: Program) -> list[str]:
    data = f"--data={program.instance_mib << 20}"
    return ["prlimit", "--core=0", f"--fsize={MAX_FILE_BYTES}", data, "--"]


def _ended(process: subprocess.Popen[bytes], limit_s: float) -> ProgramRun:
    try:
        return ProgramRun(reason="exit", exit_code=process.wait(limit_s))
    except subprocess.TimeoutExpired:
        return ProgramRun(reason="timeout", exit_code=None)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
