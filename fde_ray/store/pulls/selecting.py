"""Which objects of which runs are wanted, and what they are called in the folder. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import NamedTuple

from fde_ray.model.errors import UserError
from fde_ray.model.result import RunResult
from fde_ray.store.results import Mark
from fde_ray.store.sweep_runs import PlacedRun


class Kind(StrEnum):
    """What can be pulled, in the order in which it is."""

    SUMMARIES = "summaries"
    DIALOGUES = "dialogues"
    JUDGINGS = "judgings"
    CALLS = "calls"
    EVENTS = "events"
    EXTRACTIONS = "extractions"
    WORKSPACES = "workspaces"


ALL = "all"


def kinds_of(text: str) -> frozenset[Kind]:
    """Return the kinds that a list such as `summaries,dialogues` or `all` names."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in {ALL, *Kind}]
    if unknown or not names:
        problem = f"there is no {unknown[0]!r}; " if unknown else ""
        raise UserError(f"--only: {problem}choose from {', '.join([*Kind, ALL])}")
    return frozenset(Kind) if ALL in names else frozenset(Kind(name) for name in names)


Facts = Mapping[str, str]
FIELDS = ("run", "case", "condition", "system", "repeat", "phase", "grade")


class Where:
    """Conditions on the facts of a run: all fields must fit, one value of each is enough."""

    def __init__(self, wanted: Mapping[str, Sequence[str]] | None = None) -> None:
        self._wanted = wanted or {}

    @classmethod
    def parsed(cls, texts: Iterable[str]) -> Where:
        """Read texts such as `case=017,system=a*`; UserError says what is wrong."""
        wanted: dict[str, list[str]] = {}
        for pair in (pair for text in texts for pair in text.split(",") if pair.strip()):
            field, sign, value = (piece.strip() for piece in pair.partition("="))
            if not sign or not value or field not in FIELDS:
                known = ", ".join(FIELDS)
                raise UserError(f"--where: write FIELD=VALUE with one of {known}, not {pair!r}")
            wanted.setdefault(field, []).append(value)
        return cls(wanted)

    def fits(self, facts: Facts) -> bool:
        """Tell whether a run is wanted; a fact that is not known fits nothing."""
        return all(
            any(fnmatchcase(facts.get(field, ""), value) for value in values) and field in facts
            for field, values in self._wanted.items()
        )

    def needs(self, facts: Facts) -> bool:
        """Tell whether a field is asked for that `facts` do not know."""
        return any(field not in facts for field in self._wanted)


def facts_of(mark: Mark, run: PlacedRun | None) -> dict[str, str]:
    """Return what is known of a run without its result."""
    facts = {"run": mark.run_id, "phase": mark.phase.value, "grade": mark.grade.value}
    return facts if run is None else facts | place_facts(run)


def place_facts(run: PlacedRun) -> dict[str, str]:
    """Return what is known of a run before it ends."""
    return {"run": run.run_id, **_place(run.case_id, run.condition, run.system, run.repeat)}


def facts_with(facts: Facts, result: RunResult) -> dict[str, str]:
    """Add what the result says; names that the sweep itself gives stay."""
    return _place(result.case_id, result.condition, result.system, result.repeat) | dict(facts)


def _place(case_id: str, condition: str, system: str, repeat: int) -> dict[str, str]:
    return {"case": case_id, "condition": condition, "system": system, "repeat": str(repeat)}


class Wanted(NamedTuple):
    """An object to copy. sha256: of its bytes, when its key names that; else None."""

    kind: Kind
    key: str
    path: str
    """Relative to the folder of the sweep."""
    sha256: str | None = None


class WantedArchive(NamedTuple):
    """A manifest whose parts are one tar.gz."""

    kind: Kind
    manifest: str
    path: str


_SHA = r"[0-9a-f]{64}"
_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,120}"
_ATTEMPT = re.compile(rf"attempts/(\d{{1,9}})/(?:({_NAME})|(calls|events)/({_NAME}))")
_MANIFEST = re.compile(r"attempts/(\d{1,9})/workspace/([a-z0-9-]{1,40})/manifest\.json")
_END = re.compile(r"attempts/(\d{1,9})/end\.json")
_JUDGING = re.compile(rf"judging/({_NAME})/({_SHA})\.json")
_ROUTE = re.compile(rf"extraction/(-?{_NAME})/({_SHA})/({_NAME})")
_TRY = r"-?[A-Za-z0-9_]{1,40}\.\d{1,9}"
_OUTPUT = re.compile(rf"({_TRY})/workspace/final/manifest\.json")
_CALLS_OF_TRY = re.compile(rf"({_TRY})/calls/({_NAME})")
_CALLS_OF_GRADE = re.compile(r"grade-([0-9a-f]{12})-\d+\.jsonl\.gz")
_OF_ATTEMPT = {
    "dialogue.jsonl": (Kind.DIALOGUES, "jsonl"),
    "start.json": (Kind.DIALOGUES, "start.json"),
    "end.json": (Kind.DIALOGUES, "end.json"),
    "gate.json": (Kind.DIALOGUES, "gate.json"),
    "decoys.json": (Kind.DIALOGUES, "decoys.json"),
}


def small_objects(
    keys: Iterable[str], prefix: str, run: str, grade: str, kinds: Collection[Kind]
) -> Iterator[Wanted]:
    """Yield the wanted objects among the keys of a run. prefix: of the run; others are ignored."""
    for key in keys:
        found = _small(key, key.removeprefix(prefix), run, grade)
        if key.startswith(prefix) and found is not None and found.kind in kinds:
            yield found


def _small(key: str, name: str, run: str, grade: str) -> Wanted | None:
    if match := _ATTEMPT.fullmatch(name):
        number, file, folder, inner = match.groups()
        if folder:
            of_grade = _CALLS_OF_GRADE.fullmatch(inner)
            if of_grade and not grade.startswith(of_grade[1]):
                return None
            return Wanted(Kind(folder), key, f"{folder}/{run}.{number}.{inner}")
        if file not in _OF_ATTEMPT:
            return None
        kind, ending = _OF_ATTEMPT[file]
        return Wanted(kind, key, f"{kind}/{run}.{number}.{ending}")
    name = _of_grade(name, grade)
    if match := _JUDGING.fullmatch(name):
        path = f"judgings/{run}.{grade}/{match[1]}.{match[2]}.json"
        return Wanted(Kind.JUDGINGS, key, path, sha256=match[2])
    if match := _CALLS_OF_TRY.fullmatch(name):
        return Wanted(Kind.CALLS, key, f"calls/{run}.{grade}.{match[1]}.{match[2]}")
    if match := _ROUTE.fullmatch(name):
        path = f"extractions/{run}.{grade}/{match[1]}.{match[2]}.{match[3]}"
        of_bytes = match[2] if match[3] == "route.json" else None
        return Wanted(Kind.EXTRACTIONS, key, path, sha256=of_bytes)
    return None


def archives(
    keys: Sequence[str],
    prefix: str,
    run: str,
    grade: str,
    kinds: Collection[Kind],
    counting: tuple[int, str] | None,
) -> Iterator[WantedArchive]:
    """Yield the wanted archives of a run.

    counting: attempt and snapshot that the run stands by; None = it left no workspace.
    """
    for key in keys:
        name = key.removeprefix(prefix)
        if Kind.WORKSPACES in kinds and (match := _MANIFEST.fullmatch(name)):
            if counting == (int(match[1]), match[2]):
                yield WantedArchive(Kind.WORKSPACES, key, f"workspaces/{run}.{match[1]}.tar.gz")
        elif Kind.EXTRACTIONS in kinds and (match := _OUTPUT.fullmatch(_of_grade(name, grade))):
            path = f"extractions/{run}.{grade}/{match[1]}.tar.gz"
            yield WantedArchive(Kind.EXTRACTIONS, key, path)


def ends(keys: Iterable[str], prefix: str) -> dict[int, str]:
    """Return the keys of `end.json` by attempt."""
    found = ((_END.fullmatch(key.removeprefix(prefix)), key) for key in keys)
    return {int(match[1]): key for match, key in found if match}


def _of_grade(name: str, grade: str) -> str:
    return name.removeprefix(f"grades/{grade}/") if name.startswith(f"grades/{grade}/") else ""
