"""Which row of a source stands behind which row of a normalised file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations

from .columns import Field, Pairs, named_columns
from .reading import Table
from .values import Cell, loose, number, same, text_of

TOTAL_WORDS = {"total", "totals", "sum", "grand total", "average", "mean", "overall"}
ENOUGH = 0.5
MAX_SCAN = 500
_SPELLINGS: tuple[Callable[[Cell], str], ...] = (text_of, loose)
Key = Callable[[list[Cell]], tuple[str, ...]]


@dataclass
class Alignment:
    """`pairs` in target order; row numbers of what has no partner."""

    pairs: Pairs
    added: list[int]
    dropped: list[int]
    keyed: bool
    """Whether identifiers or groups decided, not values or places."""


def data_rows(fields: Iterable[Field], source: Table) -> Table:
    """Return the source without blank rows and rows that only sum up."""
    places = [c for f in fields if f.is_identity for c in named_columns(f, source)[:1]]
    width = len(source.columns) - len(source.implicit)
    rows = [
        row
        for row in source.rows
        if any(text_of(cell) for cell in row[:width])
        and not (places and all(_sums_up(row[place]) for place in places))
    ]
    return Table(source.columns, rows, source.label, source.origin, source.implicit)


def _sums_up(cell: Cell) -> bool:
    text = text_of(cell)
    return not text or text.rstrip(":") in TOTAL_WORDS


def alignments(fields: list[Field], target: Table, source: Table) -> list[Alignment]:
    """Return the pairings worth a check: by identity, else by place and by values."""
    by_key = _by_identity(fields, target, source)
    if by_key is not None:
        return [by_key]
    found = []
    if len(target.rows) == len(source.rows):
        found.append(_by_place(fields, target, source))
    by_values = _by_values(fields, target, source)
    return found if by_values is None else [*found, by_values]


def _by_identity(fields: list[Field], target: Table, source: Table) -> Alignment | None:
    keyed = {f: c for f in fields if f.is_identity and (c := _key_columns(f, target, source))}
    best: tuple[int, list[tuple[int, int]], Callable[[Cell], str]] | None = None
    for chosen in _subsets(list(keyed)):
        columns = [(target.columns.index(f.name), keyed[f][0]) for f in chosen]
        for spelled in _SPELLINGS:
            count = _matches(target, source, columns, spelled)
            if best is None or count > best[0]:
                best = count, columns, spelled
        if best is not None and best[0] == len(target.rows):
            break
    if best is None or best[0] < ENOUGH * min(len(target.rows), len(source.rows)):
        return None
    _, columns, spelled = best
    return _bucketed(
        fields,
        target,
        source,
        lambda row: tuple(spelled(row[t]) for t, _ in columns),
        lambda row: tuple(spelled(row[s]) for _, s in columns),
        keyed=True,
    )


def _subsets(fields: list[Field]) -> Iterable[tuple[Field, ...]]:
    fields = sorted(fields, key=lambda f: f.role != "identifier")[:4]
    for size in range(len(fields), 0, -1):
        yield from combinations(fields, size)


def _key_columns(field: Field, target: Table, source: Table) -> list[int]:
    named = named_columns(field, source)
    wanted = {loose(row[target.columns.index(field.name)]) for row in target.rows}
    scored = []
    for place in named or range(len(source.columns)):
        held = {loose(row[place]) for row in source.rows}
        share = len(wanted & held) / max(1, len(wanted))
        if share >= ENOUGH:
            scored.append((-share, place))
    return [place for _, place in sorted(scored)]


def _matches(
    target: Table, source: Table, columns: list[tuple[int, int]], spelled: Callable[[Cell], str]
) -> int:
    ours = Counter(tuple(spelled(row[t]) for t, _ in columns) for row in target.rows)
    theirs = Counter(tuple(spelled(row[s]) for _, s in columns) for row in source.rows)
    return sum((ours & theirs).values())


def _bucketed(
    fields: list[Field], target: Table, source: Table, ours: Key, theirs: Key, *, keyed: bool
) -> Alignment:
    our_keys = [ours(row) for row in target.rows]
    their_keys = [theirs(row) for row in source.rows]
    partner: dict[int, int] = {}
    taken: set[int] = set()
    values = _plain_columns(fields, target, source, ("decision", "derived_checked"))
    order = _plain_columns(fields, target, source, ("order",))
    for columns in ([*values, *order], values):
        _pair_equal(target, source, our_keys, their_keys, columns, partner, taken)
    _pair_fitting(fields, target, source, our_keys, their_keys, partner, taken)
    _pair_equal(target, source, our_keys, their_keys, [], partner, taken)
    return Alignment(
        pairs=[(target.rows[t], source.rows[s]) for t, s in sorted(partner.items())],
        added=[n for n in range(len(target.rows)) if n not in partner],
        dropped=[n for n in range(len(source.rows)) if n not in taken],
        keyed=keyed,
    )


def _plain_columns(
    fields: list[Field], target: Table, source: Table, roles: tuple[str, ...]
) -> list[tuple[int, int]]:
    return [
        (own, places[0])
        for own, places, f in _value_columns(fields, target, source)
        if f.role in roles and f.declared is None
    ]


def _pair_equal(
    target: Table,
    source: Table,
    our_keys: list[tuple[str, ...]],
    their_keys: list[tuple[str, ...]],
    columns: list[tuple[int, int]],
    partner: dict[int, int],
    taken: set[int],
) -> None:
    """Pair rows of one key whose cells in `columns` agree, in the order of both tables."""
    free: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place in range(len(source.rows) - 1, -1, -1):
        if place not in taken:
            row = source.rows[place]
            free[(*their_keys[place], *(loose(row[s]) for _, s in columns))].append(place)
    for place, row in enumerate(target.rows):
        if place in partner:
            continue
        fitting = free.get((*our_keys[place], *(loose(row[t]) for t, _ in columns)))
        if fitting:
            partner[place] = fitting.pop()
            taken.add(partner[place])


def _pair_fitting(
    fields: list[Field],
    target: Table,
    source: Table,
    our_keys: list[tuple[str, ...]],
    their_keys: list[tuple[str, ...]],
    partner: dict[int, int],
    taken: set[int],
) -> None:
    """Pair rows of one key that agree within tolerance and declared factors; small groups only."""
    columns = _value_columns(fields, target, source)
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, key in enumerate(their_keys):
        if place not in taken:
            groups[key].append(place)
    for number_, row in enumerate(target.rows):
        group = groups.get(our_keys[number_], [])
        if number_ in partner or not 1 < len(group) <= MAX_SCAN:
            continue
        fit = next((p for p in group if _fits(row, source.rows[p], columns)), None)
        if fit is not None:
            partner[number_] = fit
            taken.add(fit)
            group.remove(fit)


def _value_columns(
    fields: list[Field], target: Table, source: Table
) -> list[tuple[int, list[int], Field]]:
    return [
        (target.columns.index(f.name), named_columns(f, source), f)
        for f in fields
        if f.role != "informational" and named_columns(f, source)
    ]


def _fits(
    ours: list[Cell], theirs: list[Cell], columns: list[tuple[int, list[int], Field]]
) -> bool:
    return all(
        any(
            same(ours[own], theirs[place], field.kind)
            or (
                field.declared is not None
                and same(ours[own], theirs[place], field.kind, field.declared)
            )
            for place in places
        )
        for own, places, field in columns
    )


def _by_values(fields: list[Field], target: Table, source: Table) -> Alignment | None:
    columns = [
        (own, places[0])
        for own, places, f in _value_columns(fields, target, source)
        if f.has_value and f.declared is None
    ]
    if not columns:
        return None
    return _bucketed(
        fields,
        target,
        source,
        lambda row: tuple(loose(row[t]) for t, _ in columns),
        lambda row: tuple(loose(row[s]) for _, s in columns),
        keyed=False,
    )


def _by_place(fields: list[Field], target: Table, source: Table) -> Alignment:
    ours, theirs = list(target.rows), list(source.rows)
    for field in fields:
        named = named_columns(field, source)
        if field.role == "order" and named:
            own = target.columns.index(field.name)
            if all(number(row[own]) is not None for row in ours) and all(
                number(row[named[0]]) is not None for row in theirs
            ):
                ours.sort(key=lambda row: number(row[own]) or 0)
                theirs.sort(key=lambda row: number(row[named[0]]) or 0)
            break
    return Alignment(pairs=list(zip(ours, theirs, strict=True)), added=[], dropped=[], keyed=False)
