"""Foreign files as tables. Whatever is wrong with a file ends as `Unreadable`, never as a crash."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from dataclasses import dataclass, field

from .values import Cell, numbers

MAX_BYTES = 64 << 20
MAX_CELLS = 4_000_000
MAX_COLUMNS = 4_000
MAX_TABLES = 200
SAMPLE_LINES = 500
TEXT_SUFFIXES = ("csv", "tsv", "txt", "md", "dat", "tab", "psv", "log", "rst", "out", "")
_RULE_CELL = re.compile(r"\s*:?-{2,}:?\s*|\s*[=+-]*\s*")


class Unreadable(Exception):
    """No table can be read from a file; the text says why."""


@dataclass
class Table:
    """`label` says where in its file a table stands; rows have as many cells as `columns`."""

    columns: list[str]
    rows: list[list[Cell]]
    label: str = ""
    origin: str = ""
    implicit: set[int] = field(default_factory=set)
    """Columns that we added: place in the file, name of the file and of the part."""

    def with_places(self) -> Table:
        """Return the table with its implicit columns."""
        width = len(self.columns)
        stem = self.origin.rsplit("/", 1)[-1].rsplit(".", 1)[0]
        rows = [
            [*row, str(place), str(place - 1), stem, self.label]
            for place, row in enumerate(self.rows, start=1)
        ]
        names = [*self.columns, "_row", "_row0", "_file", "_part"]
        return Table(names, rows, self.label, self.origin, set(range(width, width + 4)))


def decoded(content: bytes) -> str:
    """Return text in UTF-8, UTF-16 with a mark, or Latin-1; Unreadable for binary content."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        encodings = ["utf-16"]
    elif b"\0" in content:
        raise Unreadable("binary content")
    else:
        encodings = ["utf-8-sig", "cp1252", "latin-1"]
    for encoding in encodings:
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    raise Unreadable("no known text encoding")


def tables_of_text(text: str, label: str = "") -> list[Table]:
    """Return tables of delimited text and of the Markdown tables in it."""
    found: list[Table] = []
    for number, block in enumerate(_piped_blocks(text), start=1):
        found += tables_of_grid(block, f"table {number}")
    sample = "".join(text.splitlines(keepends=True)[:SAMPLE_LINES])
    grids = {mark: grid for mark in ",;\t|" if (grid := _delimited(sample, mark))}
    mark = max(grids, key=lambda m: _regularity(grids[m]), default=None)
    best = _delimited(text, mark) if mark else []
    if not best:
        best = [[line.strip()] for line in text.splitlines() if line.strip()]
    return [*found, *tables_of_grid(best, label)]


def strict_csv(content: bytes) -> Table:
    """Return the one table that a plain CSV reader sees: commas, header first, nothing skipped."""
    rows = _delimited(decoded(content), ",", comments=False)
    if not rows:
        raise Unreadable("holds no table")
    width = max(len(row) for row in rows)
    names = [str(cell) for cell in _padded(rows[0], width)]
    return Table(names, [_padded(row, width) for row in rows[1:]])


def _piped_blocks(text: str) -> list[list[list[Cell]]]:
    blocks: list[list[list[Cell]]] = [[]]
    for line in text.splitlines():
        bare = line.strip()
        if len(bare) > 2 and bare[0] == bare[-1] == "|":
            cells: list[Cell] = [cell.strip().strip("*`") for cell in bare[1:-1].split("|")]
            if not all(_RULE_CELL.fullmatch(cell) for cell in cells):
                blocks[-1].append(cells)
        elif blocks[-1]:
            blocks.append([])
    return [block for block in blocks if len(block) > 1][:MAX_TABLES]


def _delimited(text: str, mark: str, *, comments: bool = True) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    cells = 0
    lines = io.StringIO(text, newline="")
    try:
        for row in csv.reader(lines, delimiter=mark):
            if not any(cell.strip() for cell in row):
                continue
            if comments and row[0].lstrip().startswith("#"):
                continue
            cells += len(row)
            if cells > MAX_CELLS or len(row) > MAX_COLUMNS:
                raise Unreadable("too many cells")
            rows.append([cell.strip() for cell in row])
    except csv.Error:
        return []
    return rows if not comments or any(len(row) > 1 for row in rows) else []


def _regularity(grid: list[list[Cell]]) -> tuple[float, int]:
    width, count = _usual_width(grid)
    return count / len(grid) if width > 1 else 0.0, width


def _usual_width(grid: list[list[Cell]]) -> tuple[int, int]:
    return max(Counter(len(row) for row in grid).items(), key=lambda item: (item[1], item[0]))


def tables_of_grid(grid: list[list[Cell]], label: str = "") -> list[Table]:
    """Return the grid with its first full row as header, and without header if that may be data."""
    if not grid:
        return []
    width, _ = _usual_width(grid)
    first = next((n for n, row in enumerate(grid) if len(row) >= width), 0)
    body = [_padded(row, width) for row in grid[first:]]
    names = [str(cell if cell is not None else "").strip() for cell in body[0]]
    found = [Table(names, body[1:], label)]
    if any(numbers(cell) for cell in body[0]):
        found.append(Table([f"column {n + 1}" for n in range(width)], body, label))
    return found


def _padded(row: list[Cell], width: int) -> list[Cell]:
    return (row + [None] * (width - len(row)))[:width]
