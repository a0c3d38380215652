"""Small edits of the reference: each rule just kept, just broken, and each point gone wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from fde_ray.cases.authoring.mutants import Mutant

TARGET = "predictions.csv"
FIELDS = ("titre_g_l", "duration_h", "productivity_g_l_h")
LIMITS = (
    ("titre_top", "titre_g_l", "200", "200.001"),
    ("titre_bottom", "titre_g_l", "0", "-0.001"),
    ("duration_top", "duration_h", "240", "240.01"),
    ("duration_bottom", "duration_h", "12", "11.99"),
    ("productivity_top", "productivity_g_l_h", "10", "10.0001"),
    ("productivity_bottom", "productivity_g_l_h", "0", "-0.0001"),
)
FINISHED = "F1000"
UNHEARD = "F9999"

Row = Mapping[str, str]


def edit(op: str, **keys: Any) -> dict[str, Any]:
    return {"op": op, "file": TARGET, **keys}


def set_cell(field: str, value: str, row: int = 0) -> dict[str, Any]:
    return edit("set", row=row, field=field, value=value)


def append(batch_id: str) -> dict[str, Any]:
    values = {"batch_id": batch_id, "titre_g_l": "40", "duration_h": "60"}
    return edit("append", values={**values, "productivity_g_l_h": "0.66"})


def broken(name: str, code: str, *edits: Mapping[str, Any]) -> Mutant:
    return Mutant(name, code, "outside", (code,), edits)


def kept(name: str, code: str, *edits: Mapping[str, Any]) -> Mutant:
    return Mutant(name, code, "inside", (), edits)


def neutral(name: str, code: str, *edits: Mapping[str, Any]) -> Mutant:
    side: Literal["neutral"] = "neutral"
    return Mutant(name, code, side, (), edits)


def mutants(
    best: Sequence[Row], knocked: Mapping[str, Sequence[Row]], void: str
) -> Iterator[Mutant]:
    """Yield every mutant; `knocked` holds the answer of a solver that lacked one point."""
    yield from row_mutants(len(best), best[0], void)
    for name, field, inside, outside in LIMITS:
        yield kept(f"{name}_inside", "range", set_cell(field, inside))
        yield broken(f"{name}_outside", "range", set_cell(field, outside))
    yield from format_mutants()
    for key, rows in knocked.items():
        columns = [
            edit("column", field=field, values=[row[field] for row in rows]) for field in FIELDS
        ]
        yield neutral(f"point_{key}", key, *columns)


def row_mutants(count: int, first: Row, void: str) -> Iterator[Mutant]:
    last = count - 1
    yield kept("coverage_inside", "coverage", edit("move", row=0, to=last))
    yield broken("coverage_outside_first", "coverage", edit("drop", row=0))
    yield broken("coverage_outside_last", "coverage", edit("drop", row=last))
    yield kept("void_inside", "void_batch", edit("swap", rows=[0, last]))
    yield broken("void_outside", "void_batch", append(void))
    yield kept("unknown_inside", "unknown_batch", edit("move", row=last, to=0))
    yield broken("unknown_outside_finished", "unknown_batch", append(FINISHED))
    yield broken("unknown_outside_unheard", "unknown_batch", append(UNHEARD))
    yield kept("duplicate_inside", "duplicate_batch", edit("swap", rows=[1, 2]))
    yield broken("duplicate_outside", "duplicate_batch", append(first["batch_id"]))


def format_mutants() -> Iterator[Mutant]:
    yield kept("number_inside", "format.number", set_cell("titre_g_l", "4.5e1"))
    for name, text in (("nan", "nan"), ("blank", ""), ("comma", "4 5"), ("huge", "1e13")):
        yield broken(f"number_outside_{name}", "format.number", set_cell("titre_g_l", text))
    yield broken("column_missing", "missing_column", edit("drop_column", field="duration_h"))
    yield broken("file_missing", "missing_file", edit("remove"))
