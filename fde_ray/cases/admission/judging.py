"""A20: triggers must count for their point, decoys for none, and probes' questions as they say."""

import re
from collections.abc import Callable

from fde_ray.cases.admission.bench import Bench, RuleResult, verdict
from fde_ray.cases.probes import SYSTEM_PROBES
from fde_ray.cases.records import Point

Covers = Callable[[str, Point], bool]
_WORD = re.compile(r"[a-z0-9.]+")
_PLAIN_TEXT = """a an and any are as at be by can do does for from has have how i in is it its may
much must my of on one or should that the their there these this to use we what when where which who
with you your"""
_PLAIN = frozenset(_PLAIN_TEXT.split())
_SHARE = 0.75


def covers_by_words(question: str, point: Point) -> bool:
    """Tell whether most content words of a question are those of one trigger or the requirement."""
    asked = _words(question)
    texts = (point.requirement, *point.triggers)
    return bool(asked) and any(len(asked & _words(t)) >= _SHARE * len(asked) for t in texts)


def _words(text: str) -> frozenset[str]:
    words = (word.strip(".") for word in _WORD.findall(text.lower()))
    return frozenset(word for word in words if word and word not in _PLAIN)


def judge_set(bench: Bench, covers: Covers) -> RuleResult:
    """Return A20 for the given judge."""
    faults = []
    points = bench.case.points
    decoys = {record.key: record.decoys for record in bench.case.admission}
    for point in points:
        faults += [f"{point.key}: misses {t!r}" for t in point.triggers if not covers(t, point)]
        for decoy in decoys[point.key]:
            faults += [f"{other.key}: counts {decoy!r}" for other in points if covers(decoy, other)]
    for name in SYSTEM_PROBES:
        if name not in bench.probes:
            continue
        probe = bench.probes[name]
        units = [u for asked in probe.rounds for text in asked for u in question_units(text)]
        covered = {point.key for point in points if any(covers(unit, point) for unit in units)}
        if covered != set(probe.covered):
            faults.append(f"{name}: covers {sorted(covered)}, says {sorted(probe.covered)}")
        if len(units) != probe.units:
            faults.append(f"{name}: {len(units)} units, says {probe.units}")
    return verdict("A20", faults, "triggers count, decoys do not", {})


def question_units(text: str) -> list[str]:
    """Return the units of a question: its pieces at question marks."""
    return [piece.strip() for piece in re.split(r"[?？]", text) if re.search(r"\w", piece)]
