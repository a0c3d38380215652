"""Executable cases: what is delivered is a program, and what is judged are its answers.

The program is run once for each hidden instance, which it is fed on standard input. The evaluator
never sees it: it gets a folder with what the program wrote for each instance, under the instance's
name, and `_runs.json`, which says how each run ended. `grading.programs` runs programs of agents in
a sandbox, `authoring.program_runs` those of a case's author.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from fde_ray.cases.foreign import MAX_DATA_BYTES, read_file, read_json, tree_files
from fde_ray.cases.records import CaseMeta, Program, SubmissionSchema
from fde_ray.model.base import Record
from fde_ray.model.boxes import MAX_KEPT_BYTES
from fde_ray.model.errors import CaseError

INSTANCES = "truth/instances"
"""Below sealed/; what an evaluator may read, and a program only in part: one instance a run."""
RUNS_FILE = "_runs.json"
MAX_INSTANCES = 100
MAX_RUNS_S = 6 * 3600
"""What one program may take for all instances: the pod that runs it does not live for ever."""
MAX_ANSWER_BYTES = MAX_KEPT_BYTES
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
"""Hashing without a seed: the same program is to answer the same."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Instance(NamedTuple):
    name: str
    content: bytes


class ProgramRun(Record):
    """How one run ended. exit_code: negative = killed by that signal, None = unless it exited.

    `size`: the program was not started, for its files are larger than the case allows.
    """

    reason: str
    exit_code: int | None

    @property
    def has_answer(self) -> bool:
        return self.reason == "exit" and self.exit_code == 0


class Answers:
    """The folder that an evaluator reads. Equal answers and ends give equal folders."""

    def __init__(self, folder: Path, entry: str | None) -> None:
        """entry: the program's file; None = it was not delivered, and nothing is run."""
        self._folder, self._entry = folder, entry
        self._runs: dict[str, ProgramRun] = {}

    def add(self, instance: str, run: ProgramRun, output: bytes = b"") -> None:
        """Keep `output` as the answer if the run has one."""
        self._runs[instance] = run
        if run.has_answer:
            (self._folder / instance).write_bytes(output)

    def close(self) -> None:
        """Write what became of each run."""
        runs = {name: run.jsonable() for name, run in self._runs.items()}
        text = json.dumps({"entry": self._entry, "runs": runs}, indent=1, sort_keys=True)
        (self._folder / RUNS_FILE).write_text(text + "\n", encoding="utf-8")


def unanswered(files: Mapping[str, bytes]) -> str | None:
    """Return why an instance has no answer, the first of them; None = each has one.

    files: what an evaluator reads.
    """
    told = json.loads(files[RUNS_FILE])
    if told["entry"] is None:
        return "the program was not delivered"
    for name, record in told["runs"].items():
        run = ProgramRun.model_validate(record)
        if not run.has_answer:
            end = f"exit {run.exit_code}" if run.reason == "exit" else run.reason
            return f"{told['entry']} has no answer to {name} ({end})"
    return None


def program_argv(python: str, folder: str, entry: str) -> tuple[str, ...]:
    """Return the command of a program: it imports from its own folder, and from no user's site."""
    return (python, "-B", "-s", f"{folder}/{entry}")


def refuse_huge(root: Path, files: Iterable[tuple[str, os.stat_result]]) -> None:
    """Raise CaseError for an instance that is too large for any reader of packages.

    files: of a package, by name below `root`. Readers would tell of their own limit.
    """
    for name, facts in files:
        if name.startswith(f"sealed/{INSTANCES}/") and facts.st_size > MAX_DATA_BYTES:
            raise CaseError(root / name, _too_large())


def _too_large() -> str:
    return f"is larger than {MAX_KEPT_BYTES} bytes, the most of an instance"


def instance_names(sealed: Path) -> list[str]:
    """Return the names of the hidden instances below a case's sealed folder, in order."""
    return [name for name, _ in tree_files(sealed / INSTANCES)]


def read_instance(sealed: Path, name: str) -> Instance:
    return Instance(name, read_file(sealed / INSTANCES / name, max_bytes=MAX_KEPT_BYTES))


def read_instances(sealed: Path) -> list[Instance]:
    """Return all hidden instances; together they may be large."""
    return [read_instance(sealed, name) for name in instance_names(sealed)]


def check_program(root: Path, meta: CaseMeta, schema: SubmissionSchema) -> None:
    """Raise CaseError unless kind, `[program]`, schema, params and instances fit each other."""
    toml, program = root / "case.toml", meta.program
    if meta.kind == "artifact":
        if program is not None:
            raise CaseError(toml, "program: only a case of kind 'executable' has one; remove it")
        return
    if program is None:
        fault = "kind 'executable' needs a table [program] of entry, instance_s, instance_mib"
        raise CaseError(toml, fault)
    _check_entry(toml, program.entry, schema)
    _check_params(root / "sealed" / "params.json", program)
    count = _instance_count(root / "sealed" / INSTANCES)
    if count * program.instance_s > MAX_RUNS_S:
        most = f"at most {MAX_RUNS_S // count} for {count} instances"
        raise CaseError(toml, f"program.instance_s: must be {most}")


def _check_entry(toml: Path, entry: str, schema: SubmissionSchema) -> None:
    if not entry.endswith(".py"):
        raise CaseError(toml, f"program.entry: {entry!r} is no Python file")
    formats = {file.name: file.format for file in schema.files}
    if entry not in formats:
        raise CaseError(toml, f"program.entry: {entry!r} is no file of submission_schema.json")
    others = [name for name in formats if name.endswith(".py") and name != entry]
    if others:
        # Which of two is run would decide scores, and `scoring_hash` would not tell.
        fault = f"submission_schema.json wants {others[0]!r}, too; modules need no place there"
        raise CaseError(toml, f"program.entry: {fault}")
    if formats[entry] != "text":
        raise CaseError(toml, f"program.entry: the schema must give {entry!r} the format 'text'")


def _check_params(path: Path, program: Program) -> None:
    """What decides a score must count in the scoring hash, which leaves out case.toml."""
    params = read_json(path)
    if not isinstance(params, dict):
        raise CaseError(path, "must be an object")
    for name in ("instance_s", "instance_mib"):
        expected, told = getattr(program, name), params.get(f"program_{name}")
        if isinstance(told, bool) or told != expected:
            raise CaseError(path, f"program_{name}: must be {expected}, as in case.toml")


def _instance_count(folder: Path) -> int:
    """Return how many instances there are; CaseError unless each can be fed."""
    found = list(tree_files(folder)) if folder.is_dir() else []
    if not found:
        raise CaseError(folder, "holds no instance; an executable case needs one or more files")
    if len(found) > MAX_INSTANCES:
        raise CaseError(folder, f"holds more than {MAX_INSTANCES} instances")
    for name, facts in found:
        if "/" in name:
            raise CaseError(folder / name, "instances lie side by side, in no further folder")
        if not _NAME.fullmatch(name):
            raise CaseError(
                folder / name,
                "an instance's name is of letters, digits, . _ - and begins with a letter or digit",
            )
        if not 0 < facts.st_size <= MAX_KEPT_BYTES:
            empty = f"is empty; an instance has 1 to {MAX_KEPT_BYTES} bytes"
            raise CaseError(folder / name, _too_large() if facts.st_size else empty)
    return len(found)
