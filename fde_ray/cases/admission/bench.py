"""Runs a case's evaluator on its probes and mutants, each only once.

Of an executable case, programs are run first; the evaluator is given their answers.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

from fde_ray.cases.authoring.mutants import Mutant, files_under, mutated, read_mutant
from fde_ray.cases.authoring.probe_runs import Evaluation, evaluate_files
from fde_ray.cases.authoring.program_runs import answered_files
from fde_ray.cases.authoring.strict_reader import tree_hash
from fde_ray.cases.foreign import read_text
from fde_ray.cases.normalising import normalised
from fde_ray.cases.probes import list_probes, load_probe
from fde_ray.cases.programs import unanswered
from fde_ray.cases.records import Case, Probe
from fde_ray.model.base import Record

Evaluate = Callable[[Path, Mapping[str, bytes]], Evaluation]
DELTA_FLOOR = 0.03


class RuleResult(Record):
    """ok None: not decided here. measured: the numbers that the verdict rests on, by name."""

    rule: str
    ok: bool | None
    detail: str
    measured: dict[str, float] = {}


class Bench:
    """One case under test. `delta` is the drop that counts as an effect: max(0.03, 3 noise)."""

    def __init__(self, case: Case, evaluate: Evaluate | None = None) -> None:
        self.case = case
        self._evaluate = evaluate or evaluate_files
        self._done: dict[str, Evaluation] = {}
        self._answers: dict[str, Mapping[str, bytes]] = {}

    @property
    def delta(self) -> float:
        return max(DELTA_FLOOR, 3 * self.case.reference.noise)

    def run(self, files: Mapping[str, bytes]) -> Evaluation:
        """Return what the evaluator says when these files are delivered."""
        return self._judged(self.judged_files(files))

    def judged_files(self, files: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return what the evaluator reads of a deliverable: itself, or what a program answers."""
        if self.case.meta.program is None:
            return files
        key = tree_hash(files.items())
        if key not in self._answers:
            self._answers[key] = answered_files(self.case, files)
        return self._answers[key]

    def unanswered(self, files: Mapping[str, bytes]) -> str | None:
        """Return why a delivered program has no answer somewhere; None = it has all of them."""
        if self.case.meta.program is None:
            return None
        return unanswered(self.judged_files(files))

    def _judged(self, files: Mapping[str, bytes]) -> Evaluation:
        key = tree_hash(files.items())
        if key not in self._done:
            self._done[key] = self._evaluate(self.case.root, files)
        return self._done[key]

    @cached_property
    def best(self) -> dict[str, bytes]:
        """The files of the reference deliverable."""
        return files_under(self.case.root / "sealed" / "best_solution")

    @cached_property
    def probes(self) -> dict[str, Probe]:
        return {name: load_probe(self.case, name) for name in list_probes(self.case)}

    @cached_property
    def mutants(self) -> list[Mutant]:
        folder = self.case.root / "sealed" / "mutants"
        return [read_mutant(read_text(path), path.stem) for path in sorted(folder.glob("*.json"))]

    def run_probe(self, name: str) -> Evaluation:
        """Return the evaluation of a probe's deliverable in target form."""
        return self.run(self.probe_files(name))

    def probe_files(self, name: str) -> dict[str, bytes]:
        """Return a probe's deliverable in target form, with the modules that a program imports."""
        files = self.probes[name].files
        found = normalised(self.case.submission_schema, files)
        if self.case.meta.program is None:
            return found
        return {other: code for other, code in files.items() if other.endswith(".py")} | found

    def run_mutant(self, mutant: Mutant) -> Evaluation:
        return self._judged(self.mutant_files(mutant))

    def mutant_files(self, mutant: Mutant) -> Mapping[str, bytes]:
        """Return what the evaluator reads of a mutant; edits of answers follow the program's."""
        if self.case.meta.program is None:
            return mutated(self.best, mutant.edits)
        of_program = [edit for edit in mutant.edits if edit["file"] in self.best]
        of_answers = [edit for edit in mutant.edits if edit["file"] not in self.best]
        return mutated(self.judged_files(mutated(self.best, of_program)), of_answers)

    def scores(self, *prefixes: str) -> dict[str, float]:
        """Return the scores of the probes whose names start so."""
        return {
            name: self.run_probe(name).score for name in self.probes if name.startswith(prefixes)
        }


def verdict(rule: str, faults: list[str], fine: str, measured: dict[str, float]) -> RuleResult:
    """Return the result of a rule: its faults if there are any, else the word of approval."""
    rounded = {name: round(value, 4) for name, value in measured.items()}
    return RuleResult(rule=rule, ok=not faults, detail="; ".join(faults) or fine, measured=rounded)
