"""Which column of a source holds a field, and by which unit factor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

from .reading import Table
from .values import CONVERTED, Cell, as_decimal, close, loose, number, same, shown

_UNIT_RATIOS = [Decimal(n) for n in ("60", "3600", "24", "1440", "86400", "7", "168", "3.6")]


@dataclass(frozen=True)
class Field:
    """One field of the schema. `factors`: what its aliases allow; `declared`: what was reported."""

    name: str
    kind: str
    role: str
    aliases: tuple[str, ...] = ()
    factors: tuple[Decimal, ...] = ()
    declared: Decimal | None = None
    absence_means_zero: bool = False

    @property
    def is_identity(self) -> bool:
        return self.role in ("identifier", "grouping_key")

    @property
    def has_value(self) -> bool:
        """Whether the agent's own value must come through unchanged."""
        return self.role in ("decision", "derived_checked")


def field_of(document: dict[str, Any], declared: dict[str, Any], file: str) -> Field:
    """Return a field of the submission schema with the factor that was reported for it."""
    name = str(document["name"])
    aliases, factors = [], []
    for alias in document.get("aliases") or ():
        aliases.append(str(alias["name"] if isinstance(alias, dict) else alias))
        factor = as_decimal(alias.get("factor", 1)) if isinstance(alias, dict) else None
        if factor is not None and factor != 1:
            factors.append(factor)
    reported = [declared.get(key) for key in (name, f"{file}.{name}", f"{file}:{name}")]
    given = next((item for item in reported if item is not None), None)
    return Field(
        name=name,
        kind=str(document.get("type", "string")),
        role=str(document.get("role", "decision")),
        aliases=tuple(aliases),
        factors=tuple(factors),
        declared=None if given is None else as_decimal(given),
        absence_means_zero=bool(document.get("absence_means_zero")),
    )


def named_columns(field: Field, table: Table) -> list[int]:
    """Return the columns that bear the field's name, then those that bear an alias."""
    found: list[int] = []
    for wanted in (field.name, *field.aliases):
        for place, name in enumerate(table.columns):
            if place in table.implicit or place in found:
                continue
            if loose(wanted) in (loose(name), loose(name.rsplit(".", 1)[-1])):
                found.append(place)
    return found


def allowed_factor(field: Field, factor: Decimal) -> str | None:
    """Return why a declared factor may be applied, or None if it may not."""
    if any(close(factor, known, CONVERTED) for known in field.factors):
        return "an alias of the schema"
    if factor > 0:
        if -12 <= factor.adjusted() <= 12 and factor == Decimal(1).scaleb(factor.adjusted()):
            return "a power of ten"
        if any(close(factor, r, CONVERTED) or close(factor * r, Decimal(1), CONVERTED)
               for r in _UNIT_RATIOS):  # fmt: skip
            return "a ratio of time units"
    return None


Pairs = list[tuple[list[Cell], list[Cell]]]
"""Target row and source row, side by side."""


@dataclass
class FieldResult:
    """Whether a field came through; `finding` says why not, `note` how."""

    field: Field
    finding: str = ""
    note: str = ""
    seen: bool = True
    """False when no column of the source looked like the field."""


def check_field(
    field: Field, target: Table, source: Table, pairs: Pairs, grouping: list[int]
) -> FieldResult:
    """Return the best result over the columns that may hold the field.

    grouping: the target's columns within whose groups the order counts.
    """
    checks: dict[str, Callable[..., tuple[str, str]]] = {
        "identifier": _relabelled,
        "grouping_key": _partitioned,
        "order": _ordered,
    }
    check = checks.get(field.role, _unchanged)
    own = target.columns.index(field.name)
    named = named_columns(field, source)
    results = []
    for place in named or range(len(source.columns)):
        finding, note = check(field, own, place, pairs, grouping)
        if not finding:
            return FieldResult(field, note=note)
        results.append(finding)
    if named:
        return FieldResult(field, finding=results[0])
    return FieldResult(
        field, f"{field.name}: no column of the source holds these values", "", False
    )


def _unchanged(
    field: Field, own: int, place: int, pairs: Pairs, grouping: list[int]
) -> tuple[str, str]:
    values = [(t[own], s[place]) for t, s in pairs]
    wrong = next((v for v in values if not same(*v, field.kind)), None)
    if wrong is None:
        return "", ""
    if field.declared not in (None, Decimal(1)):
        factor = field.declared
        assert factor is not None
        if all(same(*v, field.kind, factor) for v in values):
            why = allowed_factor(field, factor)
            if why is None:
                return f"{field.name}: the factor {factor} is not a change of unit", ""
            return "", f"{field.name}: times {factor}, {why}"
    ratio = _uniform_ratio(values)
    if ratio is not None:
        return f"{field.name}: times {ratio:.6g} throughout, which was not declared", ""
    return f"{field.name}: {shown(wrong[0])}, but the source says {shown(wrong[1])}", ""


def _uniform_ratio(values: list[tuple[Cell, Cell]]) -> Decimal | None:
    numbered = [(number(t), number(s)) for t, s in values]
    ratios = [t / s for t, s in numbered if t is not None and s]
    if len(ratios) < 2 or len(ratios) < len(values) // 2 or ratios[0] == 1:
        return None
    return ratios[0] if all(close(r, ratios[0], CONVERTED) for r in ratios) else None


def _relabelled(
    field: Field, own: int, place: int, pairs: Pairs, grouping: list[int]
) -> tuple[str, str]:
    values = [(t[own], s[place]) for t, s in pairs]
    clash = _clash(values)
    if clash:
        return f"{field.name}: {clash}", ""
    changed = [v for v in values if loose(v[0]) != loose(v[1])]
    if not changed:
        return "", ""
    # Where most names agree, another name is a repair only if one spelling holds the other.
    if 2 * len(changed) <= len(values):
        odd = next((v for v in changed if not _contained(loose(v[0]), loose(v[1]))), None)
        if odd is not None:
            return f"{field.name}: {shown(odd[0])} is {shown(odd[1])} in the source", ""
    return "", f"{field.name}: {len(changed)} identifiers relabelled one to one"


def _contained(one: str, other: str) -> bool:
    return bool(one and other) and (one in other or other in one)


def _partitioned(
    field: Field, own: int, place: int, pairs: Pairs, grouping: list[int]
) -> tuple[str, str]:
    clash = _clash([(t[own], s[place]) for t, s in pairs])
    return (f"{field.name}: groups differ, {clash}", "") if clash else ("", "")


def _clash(values: list[tuple[Cell, Cell]]) -> str:
    forward: dict[str, str] = {}
    backward: dict[str, str] = {}
    for t, s in values:
        one, other = loose(t), loose(s)
        if forward.setdefault(one, other) != other:
            return f"{shown(t)} stands for several values of the source"
        if backward.setdefault(other, one) != one:
            return f"{shown(s)} of the source has several names"
    return ""


def _ordered(
    field: Field, own: int, place: int, pairs: Pairs, grouping: list[int]
) -> tuple[str, str]:
    groups: dict[tuple[str, ...], Pairs] = {}
    for t, s in pairs:
        groups.setdefault(tuple(loose(t[n]) for n in grouping), []).append((t, s))
    for members in groups.values():
        ranked = sorted((_rank(t[own]), _rank(s[place])) for t, s in members)
        for (t1, s1), (t2, s2) in pairwise(ranked):
            if (t1 == t2) != (s1 == s2) or s1 > s2:
                return f"{field.name}: the sequence is not that of the source", ""
    return "", ""


def _rank(cell: Cell) -> tuple[int, Decimal, str]:
    value = number(cell)
    if value is not None:
        return 0, value, ""
    return 1, Decimal(0), str(cell or "").strip()
