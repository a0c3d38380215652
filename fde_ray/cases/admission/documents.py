"""Rules about texts and data: A1, A11, A12, A13."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from fde_ray.cases.admission.bench import Bench, RuleResult, verdict
from fde_ray.cases.authoring.vendoring import is_current
from fde_ray.cases.foreign import tree_files
from fde_ray.cases.package import load_case, visible_files
from fde_ray.cases.probes import SYSTEM_PROBES
from fde_ray.cases.programs import read_instances
from fde_ray.cases.records import IssueType
from fde_ray.model.errors import CaseError

QUOTAS = {"017": ("M4A1I1", "S1K3P1D1"), "036": ("M4A1", "S1K1P2D1")}
WORDS_OF_REQUEST, WORDS_OF_KNOWLEDGE = (80, 250), (600, 1800)
SHINGLE = 6
_HEADINGS = (
    "Background",
    "Deliverable",
    "Data notes",
    "Business rules",
    "Computation conventions",
    "Acceptance",
    "Not in scope",
)
_MEASURED = re.compile(
    r"\d\d:\d\d|\d[\d.,]*\s?(?:km|mm|m|kg|t|g/l|g|h|hours?|min(?:utes)?|days?|%|percent|l|°c)\b",
    re.IGNORECASE,
)
_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve"
_NUMBER_WORDS = tuple(_NUMBERS.split(" "))


def package_complete(bench: Bench) -> RuleResult:
    """A1: loads, has every system probe and the quota of its row, and texts of the right size."""
    case, faults = bench.case, []
    try:
        load_case(case.root)
    except CaseError as error:
        faults.append(str(error))
    faults += [f"there is no probe {name}" for name in SYSTEM_PROBES if name not in bench.probes]
    issues = _quota([p.issue_type.value for p in case.points], "maic")
    domains = _quota([_domain_letter(p.content_domain.value) for p in case.points], "skpd")
    if case.case_id in QUOTAS and (issues, domains) != QUOTAS[case.case_id]:
        faults.append(f"quota {issues} {domains} is not {QUOTAS[case.case_id]}")
    if not is_current(case.root / "sealed" / "evaluator.py"):
        faults.append("the evaluator's shared block is not the current one")
    for what, text, (low, high) in (
        ("instruction.md", case.instruction, WORDS_OF_REQUEST),
        ("information.md", case.information, WORDS_OF_KNOWLEDGE),
    ):
        if not low <= len(text.split()) <= high:
            faults.append(f"{what} has {len(text.split())} words, not {low} to {high}")
    headings = tuple(re.findall(r"^## (.+)$", case.information, re.MULTILINE))
    if headings != _HEADINGS:
        faults.append(f"headings of information.md are {headings}")
    return verdict("A1", faults, "package is complete", {"points": float(len(case.points))})


def _domain_letter(domain: str) -> str:
    return {"scoring": "s", "constraint": "k", "computation": "p", "data": "d"}[
        domain.split("_", maxsplit=1)[0]
    ]


def _quota(values: list[str], letters: str) -> str:
    counts = Counter(value[0] for value in values)
    return "".join(f"{letter.upper()}{counts[letter]}" for letter in letters if counts[letter])


def two_worlds(bench: Bench) -> RuleResult:
    """A11: with each alternative in params.json the generator writes the same visible bytes."""
    root = bench.case.root
    expected = {
        name: (root / name).read_bytes() for name, _ in tree_files(root) if name[:5] == "data/"
    }
    params = json.loads((root / "sealed" / "params.json").read_text(encoding="utf-8"))
    worlds: list[tuple[str, dict[str, Any]]] = [("the true values", params)]
    for point in bench.case.admission:
        for value in point.alternatives:
            worlds.append((f"{point.param} = {value}", {**params, point.param: value}))
    faults = [label for label, world in worlds if _generated(root, world) != expected]
    faults = [f"visible data differ with {label}" for label in faults]
    return verdict(
        "A11", faults, f"{len(worlds)} worlds, same data", {"worlds": float(len(worlds))}
    )


def _generated(root: Path, params: dict[str, Any]) -> dict[str, bytes]:
    repository = str(Path(__file__).resolve().parents[3])
    with tempfile.TemporaryDirectory(prefix="fde-ray-world-") as scratch:
        world = Path(scratch) / "cases" / root.name
        shutil.copytree(root / "authoring", world / "authoring")
        (world / "sealed").mkdir()
        (world / "sealed" / "params.json").write_text(json.dumps(params), encoding="utf-8")
        subprocess.run(
            [sys.executable, str(world / "authoring" / "generate.py")],
            check=True, capture_output=True, timeout=120, cwd=world,
            env={"PYTHONPATH": repository, "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        return {
            name: (world / name).read_bytes()
            for name, _ in tree_files(world)
            if name[:5] == "data/"
        }


def text_leaks(bench: Bench) -> RuleResult:
    """A12: nothing visible tells an answer; an outdated statement is really there to be read."""
    case = bench.case
    names = [name for name, _ in tree_files(case.root)]
    shown = visible_files(case.root, names)
    texts = [content.decode("utf-8", "replace") for _, content in shown]
    visible = " ".join(" ".join(texts).lower().split())
    words = re.findall(r"[\w.:]+", visible)
    seen = {" ".join(words[i : i + SHINGLE]) for i in range(len(words))}
    faults = ["the canary is visible"] if case.meta.canary in visible else []
    if case.meta.program is not None:
        hidden = {
            instance.content: instance.name for instance in read_instances(case.root / "sealed")
        }
        faults += [f"{name} is the hidden {hidden[c]}" for name, c in shown if c in hidden]
    for point, record in zip(case.points, case.admission, strict=True):
        own = re.findall(r"[\w.:]+", point.answer.lower())
        shingles = {" ".join(own[i : i + SHINGLE]) for i in range(len(own) - SHINGLE + 1)}
        faults += [f"{point.key}: {found!r} is visible" for found in sorted(shingles & seen)]
        for value in _MEASURED.findall(point.answer):
            if re.search(rf"(?<![\d.,]){re.escape(value.lower())}\b", visible):
                faults.append(f"{point.key}: {value!r} is visible")
        if point.issue_type in (IssueType.INVALIDATED, IssueType.CONFLICTING) and (
            not record.quote or " ".join(record.quote.lower().split()) not in visible
        ):
            faults.append(f"{point.key}: its outdated or clashing quote is not visible")
    return verdict("A12", faults, "the visible files tell no answer", {})


def answerable(bench: Bench) -> RuleResult:
    """A13: each anchor stands once, under its heading, holds its value, and is the point's own."""
    case, faults = bench.case, []
    sections = re.split(r"^## (.+)$", case.information, flags=re.MULTILINE)
    section_of = dict(zip(sections[1::2], sections[2::2], strict=True))
    anchors = Counter(record.info_anchor for record in case.admission)
    for point, record in zip(case.points, case.admission, strict=True):
        if case.information.count(record.info_anchor) != 1 or anchors[record.info_anchor] != 1:
            faults.append(f"{point.key}: its sentence does not stand exactly once")
        if record.info_anchor not in section_of.get(record.heading, ""):
            faults.append(f"{point.key}: its sentence is not under {record.heading!r}")
        if record.info_anchor != point.answer:
            faults.append(f"{point.key}: anchor and answer differ")
        if not _tells(record.value, record.info_anchor.lower()):
            faults.append(f"{point.key}: its sentence does not hold {record.value!r}")
    return verdict("A13", faults, "each answer stands once, in its place", {})


def _tells(value: object, sentence: str) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    spellings = [f"{value:g}", f"{value:,}", f"{value * 100:g}"]
    if isinstance(value, int) and 0 <= value < len(_NUMBER_WORDS):
        spellings.append(_NUMBER_WORDS[value])
    if isinstance(value, int) and 0 <= value <= 1440:
        spellings.append(f"{value // 60:02d}:{value % 60:02d}")
    return any(re.search(rf"(?<![\d.,]){re.escape(s)}(?!\d)", sentence) for s in spellings)
