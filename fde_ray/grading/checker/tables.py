"""One normalised table against the tables of its sources (protocol rule 22)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain, islice
from typing import Any

from .alignment import Alignment, alignments, data_rows
from .columns import Field, FieldResult, check_field, named_columns
from .reading import Table
from .values import loose, number, numbers, shown, text_of

MAX_ATTEMPTS = 60
MAX_SHOWN = 8


@dataclass
class Attempt:
    """What comparing with one source table gave."""

    results: list[FieldResult]
    row_findings: list[str]
    row_notes: list[str]
    keyed: bool
    share: float
    """Target rows that found a partner, 0 to 1."""
    anchored: bool
    """Whether the source names a field whose value must not change."""

    @property
    def findings(self) -> list[str]:
        return [*self.row_findings, *(r.finding for r in self.results if r.finding)]

    @property
    def notes(self) -> list[str]:
        return [*self.row_notes, *(r.note for r in self.results if r.note)]

    @property
    def rank(self) -> tuple[bool, int, float, int]:
        good = sum(not r.finding for r in self.results)
        return self.anchored, good, self.share, -len(self.findings)


@dataclass
class Verdict:
    verdict: str
    findings: list[str] = field(default_factory=list)


@dataclass
class FileRules:
    """What schema and report say of one normalised table."""

    fields: list[Field]
    row_set: str
    reported: dict[str, Any] | None


def compared(
    rules: FileRules, target: Table, sources: list[Table], bag: Callable[[], Bag]
) -> Verdict:
    """Return the verdict on `target`, the best over all ways to read `sources`."""
    present = [f for f in rules.fields if f.name in target.columns and f.role != "informational"]
    if not present:
        return Verdict("unchecked", ["it has no column of the schema"])
    if not target.rows and not any(source.rows for source in sources):
        return Verdict("clean", ["it has no rows"])
    attempts: list[Attempt] = []
    for source in _readings(present, target, sources):
        for attempt in _attempts(rules, present, target, source):
            if not attempt.findings:
                return Verdict("clean", attempt.notes)
            attempts.append(attempt)
    joined = _joined(present, attempts)
    if joined is not None:
        return joined
    best = max(attempts, key=lambda a: a.rank, default=None)
    if best is not None and (best.anchored or (best.share == 1.0 and best.keyed)):
        return Verdict("rejected", best.findings)
    return _scattered(present, target, bag())


def _attempts(
    rules: FileRules, present: list[Field], target: Table, source: Table
) -> Iterator[Attempt]:
    table = data_rows(present, source)
    grouping = [target.columns.index(f.name) for f in present if f.role == "grouping_key"]
    anchored = any(f.has_value and named_columns(f, source) for f in present)
    for alignment in alignments(present, target, table):
        results = [check_field(f, target, table, alignment.pairs, grouping) for f in present]
        findings, notes = _row_findings(rules, present, target, source, table, alignment)
        share = len(alignment.pairs) / max(1, len(target.rows))
        yield Attempt(results, findings, notes, alignment.keyed, share, anchored)


def _row_findings(
    rules: FileRules,
    present: list[Field],
    target: Table,
    source: Table,
    table: Table,
    alignment: Alignment,
) -> tuple[list[str], list[str]]:
    findings, notes = [], []
    invented = [n for n in alignment.added if not _is_absence(present, target, n)]
    if invented:
        findings.append(f"{len(invented)} rows are not in the source, first {invented[0] + 1}")
    if alignment.dropped and rules.row_set == "decision":
        findings.append(f"{len(alignment.dropped)} rows of the source were dropped")
    elif _dropped_beside_kept(present, table, alignment):
        findings.append("rows were dropped whose keys other rows kept")
    changed = bool(alignment.dropped or alignment.added)
    counts = (len(table.rows), len(source.rows))
    if changed and rules.reported is None:
        findings.append(f"{counts[0]} rows became {len(target.rows)} without being disclosed")
    elif rules.reported is not None:
        before, after = rules.reported.get("before"), rules.reported.get("after")
        if after != len(target.rows) or before not in counts:
            findings.append(
                f"disclosed as {before} to {after} rows, but {counts[0]} became {len(target.rows)}"
            )
        elif changed:
            notes.append(f"{before} rows became {after}, disclosed")
    return findings, notes


def _dropped_beside_kept(present: list[Field], table: Table, alignment: Alignment) -> bool:
    places = [c for f in present if f.is_identity for c in named_columns(f, table)[:1]]
    if not places or not alignment.dropped:
        return False
    kept = {tuple(loose(source[c]) for c in places) for _, source in alignment.pairs}
    gone = {tuple(loose(table.rows[n][c]) for c in places) for n in alignment.dropped}
    has_identifier = any(f.role == "identifier" for f in present)
    return has_identifier and not kept.isdisjoint(gone)


def _is_absence(present: list[Field], target: Table, place: int) -> bool:
    values = [f for f in present if f.has_value]
    row = target.rows[place]
    return bool(values) and all(
        f.absence_means_zero and number(row[target.columns.index(f.name)]) == 0 for f in values
    )


def _readings(present: list[Field], target: Table, sources: list[Table]) -> Iterator[Table]:
    placed = [source.with_places() for source in sources]
    ranked = sorted(placed, key=lambda t: -sum(bool(named_columns(f, t)) for f in present))
    tables = chain(ranked, _unions(placed), _filled(placed), _melted(present, target, placed))
    yield from islice(tables, MAX_ATTEMPTS)


def _unions(tables: list[Table]) -> Iterator[Table]:
    groups: dict[tuple[str, ...], list[Table]] = {}
    for table in tables:
        groups.setdefault(tuple(loose(name) for name in table.columns), []).append(table)
    for members in groups.values():
        if len(members) > 1:
            rows = [row for member in members for row in member.rows]
            yield Table(members[0].columns, rows, "union", "", members[0].implicit)


def _filled(tables: list[Table]) -> Iterator[Table]:
    """Yield tables whose empty cells repeat the one above, as in merged cells of a spreadsheet."""
    for table in tables:
        above: list[Any] = [None] * len(table.columns)
        rows = []
        for row in table.rows:
            above = [cell if text_of(cell) else last for cell, last in zip(row, above, strict=True)]
            rows.append(above)
        if rows != table.rows:
            yield Table(table.columns, rows, table.label, table.origin, table.implicit)


def _melted(present: list[Field], target: Table, tables: list[Table]) -> Iterator[Table]:
    """Yield tables turned from wide to long where headers are values of a field."""
    for table in tables:
        for f in present:
            if f.has_value:
                continue
            wanted = {loose(row[target.columns.index(f.name)]) for row in target.rows}
            wide = [
                n
                for n, name in enumerate(table.columns)
                if n not in table.implicit and loose(name) in wanted
            ]
            if len(wide) < 2 or len(wide) * len(table.rows) > 1_000_000:
                continue
            kept = [
                n for n in range(len(table.columns)) if n not in wide and n not in table.implicit
            ]
            rows = [
                [*(row[n] for n in kept), table.columns[w], row[w]]
                for row in table.rows
                for w in wide
                if text_of(row[w])
            ]
            names = [*(table.columns[n] for n in kept), f.name, "_melted"]
            yield Table(names, rows, table.label, table.origin).with_places()


def _joined(present: list[Field], attempts: list[Attempt]) -> Verdict | None:
    """Return clean when every field came through in some table with the same rows."""
    whole = [a for a in attempts if a.keyed and a.share == 1.0 and not a.row_findings]
    if len(whole) < 2:
        return None
    for place in range(len(present)):
        if all(a.results[place].finding for a in whole):
            return None
        # A table that names a field and contradicts it is not outvoted by another.
        if any(a.results[place].finding and a.results[place].seen for a in whole):
            return None
    notes = {note for a in whole for note in a.notes}
    return Verdict("clean", ["joined from several tables of the sources", *sorted(notes)])


class Bag:
    """All words and numbers of the sources, for layouts that no table explains."""

    def __init__(self) -> None:
        self.words: set[str] = set()
        self.numbers: set[Decimal] = set()

    def add(self, text: str) -> None:
        for token in text.split():
            self._add_token(token)
            for piece in _pieces(token):
                self._add_token(piece)

    def add_table(self, table: Table) -> None:
        for row in (table.columns, *table.rows):
            for cell in row:
                self.words.add(loose(cell))
                self.numbers.update(numbers(cell))

    def _add_token(self, token: str) -> None:
        self.words.add(loose(token))
        self.numbers.update(numbers(token))

    def holds(self, f: Field, cell: Any) -> bool:
        values = numbers(cell)
        if values and f.kind in ("number", "integer"):
            factors = [Decimal(1)] if f.declared in (None, Decimal(0)) else [Decimal(1), f.declared]
            if any(v in self.numbers for v in values):
                return True
            return any(
                round(v / factor, 12).normalize() in self.numbers
                for v in values
                for factor in factors
                if factor
            )
        return all(loose(word) in self.words for word in str(cell or "").split())


def _pieces(token: str) -> list[str]:
    for mark in "()[]{}<>\"'`:;=|*":
        token = token.replace(mark, " ")
    return [piece.strip(".,") for piece in token.replace(",", " ").split()]


def _scattered(present: list[Field], target: Table, bag: Bag) -> Verdict:
    missing = []
    for f in present:
        if not f.has_value:
            continue
        own = target.columns.index(f.name)
        gone = [row[own] for row in target.rows if not bag.holds(f, row[own])]
        if gone:
            missing.append(f"{f.name}: {shown(gone[0])} is nowhere in the sources")
    if missing:
        return Verdict("rejected", missing[:MAX_SHOWN])
    return Verdict("unchecked", ["its values occur in the sources, in a layout we cannot align"])
