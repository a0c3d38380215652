"""JSON, spreadsheets and Parquet as tables, and the choice of a reader for a file."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from xml.etree import ElementTree

from .reading import (
    MAX_BYTES,
    MAX_CELLS,
    MAX_COLUMNS,
    MAX_TABLES,
    TEXT_SUFFIXES,
    Table,
    Unreadable,
    decoded,
    tables_of_grid,
    tables_of_text,
)
from .values import MAX_NUMBER_CHARS, Cell

MAX_DEPTH = 6
_SHEET = re.compile(r"xl/worksheets/[^/]+\.xml")
_LETTERS = re.compile(r"[A-Z]{1,3}")


def tables_of(content: bytes, name: str) -> list[Table]:
    """Return the tables of a file; Unreadable when its format is unknown or broken."""
    if len(content) > MAX_BYTES:
        raise Unreadable("too large")
    base = name.rsplit("/", 1)[-1]
    suffix = base.rsplit(".", 1)[-1].lower() if "." in base else ""
    try:
        found = _read(content, suffix)
    except RecursionError:
        raise Unreadable("nested too deeply") from None
    except (ValueError, KeyError, ArithmeticError, OverflowError, LookupError) as error:
        raise Unreadable(f"cannot be read ({type(error).__name__})") from None
    for table in found:
        table.origin = name
    return [table for table in found if len(table.columns) <= MAX_COLUMNS][:MAX_TABLES]


def _read(content: bytes, suffix: str) -> list[Table]:
    if suffix == "parquet" or content[:4] == b"PAR1":
        return _tables_of_parquet(content)
    if content[:4] == b"PK\x03\x04":
        return _tables_of_spreadsheet(content)
    text = decoded(content)
    if suffix in ("jsonl", "ndjson"):
        return tables_of_json([_loads(line) for line in text.splitlines() if line.strip()])
    if suffix == "json" or (suffix not in TEXT_SUFFIXES and text.lstrip()[:1] in ("{", "[")):
        try:
            return tables_of_json(_loads(text))
        except ValueError:
            return tables_of_text(text)
    return tables_of_text(text)


def _loads(text: str) -> Any:
    return json.loads(text, parse_float=_decimal, parse_int=_decimal, parse_constant=str)


def _decimal(text: str) -> Decimal | str:
    return Decimal(text) if len(text) <= MAX_NUMBER_CHARS else text


def tables_of_json(value: Any) -> list[Table]:
    """Return every table that a JSON document may be read as, outermost first."""
    found: list[Table] = []
    budget = [MAX_CELLS]
    _collect(value, "", {}, 0, found, budget)
    return found


def _collect(
    value: Any, label: str, outer: dict[str, Any], depth: int, found: list[Table], budget: list[int]
) -> None:
    if depth > MAX_DEPTH or len(found) >= MAX_TABLES:
        return
    if isinstance(value, list) and value:
        if all(isinstance(item, dict) for item in value):
            _collect_records([_merged(outer, item) for item in value], label, depth, found, budget)
        elif all(isinstance(item, list) for item in value):
            _spend(budget, sum(len(item) for item in value))
            found.extend(tables_of_grid([[_scalar(c) for c in item] for item in value], label))
        else:
            records = [_merged(outer, {"_value": item}) for item in value]
            _add_records(records, label, found, budget)
    elif isinstance(value, dict) and value:
        _collect_object(value, label, outer, depth, found, budget)


def _collect_object(
    value: dict[str, Any],
    label: str,
    outer: dict[str, Any],
    depth: int,
    found: list[Table],
    budget: list[int],
) -> None:
    children = list(value.values())
    if all(isinstance(child, dict) for child in children):
        records = [_merged(outer, {"_key": key, **child}) for key, child in value.items()]
        _collect_records(records, label, depth, found, budget)
    elif all(isinstance(child, list) for child in children):
        lengths = {len(child) for child in children}
        if len(children) > 1 and len(lengths) == 1:
            rows = zip(*children, strict=True)
            columns = [{**outer, **dict(zip(value, row, strict=True))} for row in rows]
            _add_records(columns, label, found, budget)
        records = [{**outer, "_key": key, "_items": child} for key, child in value.items()]
        _collect_records(records, label, depth, found, budget)
    elif not any(isinstance(child, (dict, list)) for child in children):
        pairs = [{**outer, "_key": key, "_value": child} for key, child in value.items()]
        _add_records(pairs, label, found, budget)
        _add_records([{**outer, **value}], label, found, budget)
        return
    inherited = {**outer, **{k: v for k, v in value.items() if not isinstance(v, (dict, list))}}
    for key, child in value.items():
        if isinstance(child, (dict, list)):
            _collect(
                child, f"{label}.{key}"[-200:].lstrip("."), inherited, depth + 1, found, budget
            )


def _collect_records(
    records: list[dict[str, Any]], label: str, depth: int, found: list[Table], budget: list[int]
) -> None:
    _add_records(records, label, found, budget)
    nested = {key: None for record in records for key, v in record.items() if isinstance(v, list)}
    for key in list(nested)[:20]:
        exploded = list(_exploded(records, key))
        _spend(budget, sum(len(record) for record in exploded))
        if exploded:
            _collect(exploded, f"{label}.{key}".lstrip("."), {}, depth + 1, found, budget)


def _exploded(records: list[dict[str, Any]], key: str) -> Iterator[dict[str, Any]]:
    for record in records:
        items = record.get(key)
        outer = {k: v for k, v in record.items() if not isinstance(v, list)}
        for place, item in enumerate(items if isinstance(items, list) else [], start=1):
            inner = item if isinstance(item, dict) else {"_value": item}
            yield _merged({**outer, "_index": Decimal(place)}, inner)


def _merged(outer: dict[str, Any], inner: dict[str, Any]) -> dict[str, Any]:
    clashes = {f"outer.{key}": outer[key] for key in outer if key in inner}
    return {**outer, **clashes, **inner} if outer else inner


def _add_records(
    records: list[dict[str, Any]], label: str, found: list[Table], budget: list[int]
) -> None:
    flat = [dict(_flattened(record, "", 0)) for record in records]
    _spend(budget, sum(len(record) for record in flat))
    columns = list(dict.fromkeys(key for record in flat for key in record))
    if not columns or len(columns) > MAX_COLUMNS:
        return
    _spend(budget, len(columns) * len(flat))
    found.append(Table(columns, [[record.get(c) for c in columns] for record in flat], label))


def _flattened(record: dict[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Cell]]:
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and depth < 2:
            yield from _flattened(value, f"{name}.", depth + 1)
        elif not isinstance(value, (dict, list)):
            yield name, _scalar(value)


def _scalar(value: Any) -> Cell:
    return None if isinstance(value, (dict, list)) else value


def _spend(budget: list[int], cells: int) -> None:
    budget[0] -= cells
    if budget[0] < 0:
        raise Unreadable("too many cells")


def _tables_of_parquet(content: bytes) -> list[Table]:
    try:
        from pyarrow import parquet  # noqa: PLC0415 - optional
    except ImportError:
        raise Unreadable("no reader for Parquet here") from None
    try:
        # One thread: a pool that is still starting when the program ends aborts it.
        file = parquet.ParquetFile(io.BytesIO(content), pre_buffer=False)
        if file.metadata.num_rows * file.metadata.num_columns > MAX_CELLS:
            raise Unreadable("too many cells")
        data = file.read(use_threads=False).to_pydict()
    except (OSError, ValueError, TypeError) as error:
        raise Unreadable(f"not Parquet ({type(error).__name__})") from None
    columns = [[_python_cell(cell) for cell in column] for column in data.values()]
    return [Table([str(name) for name in data], [list(row) for row in zip(*columns, strict=True)])]


def _python_cell(value: Any) -> Cell:
    if value is None or isinstance(value, (bool, str)):
        return value
    return Decimal(str(value)) if isinstance(value, (int, float, Decimal)) else str(value)


def _tables_of_spreadsheet(content: bytes) -> list[Table]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as book:
            if sum(entry.file_size for entry in book.infolist()) > 4 * MAX_BYTES:
                raise Unreadable("too large")
            names = book.namelist()
            strings = _shared_strings(book) if "xl/sharedStrings.xml" in names else []
            sheets = sorted(name for name in names if _SHEET.fullmatch(name))
            titles = _sheet_titles(book) if "xl/workbook.xml" in names else []
            found: list[Table] = []
            for place, sheet in enumerate(sheets[:MAX_TABLES]):
                title = titles[place] if place < len(titles) else sheet
                found += tables_of_grid(_sheet_grid(book, sheet, strings), title)
    except (zipfile.BadZipFile, ElementTree.ParseError, OSError, RuntimeError, EOFError,
            NotImplementedError, TypeError, AttributeError) as error:  # fmt: skip
        raise Unreadable(f"not a spreadsheet ({type(error).__name__})") from None
    if not sheets:
        raise Unreadable("an archive of unknown kind")
    return found


def _tree(book: zipfile.ZipFile, name: str) -> ElementTree.Element:
    with book.open(name) as stream:
        text = stream.read(2 * MAX_BYTES + 1)
    if len(text) > 2 * MAX_BYTES:
        raise Unreadable("too large")
    if b"<!DOCTYPE" in text[:4096] or b"<!ENTITY" in text:
        raise Unreadable("a spreadsheet with its own entities")
    return ElementTree.fromstring(text)  # noqa: S314 - entities were refused above


def _shared_strings(book: zipfile.ZipFile) -> list[str]:
    return ["".join(t.text or "" for t in item.iter() if _tag(t) == "t")
            for item in _tree(book, "xl/sharedStrings.xml")]  # fmt: skip


def _sheet_titles(book: zipfile.ZipFile) -> list[str]:
    tree = _tree(book, "xl/workbook.xml")
    return [str(item.get("name", "")) for item in tree.iter() if _tag(item) == "sheet"]


def _tag(element: ElementTree.Element) -> str:
    return str(element.tag).rsplit("}", 1)[-1]


def _sheet_grid(book: zipfile.ZipFile, name: str, strings: list[str]) -> list[list[Cell]]:
    grid: list[list[Cell]] = []
    budget = [MAX_CELLS]
    for row in _tree(book, name).iter():
        if _tag(row) != "row":
            continue
        cells: list[Cell] = []
        for cell in row:
            at = _column_number(cell.get("r", ""), len(cells))
            if at > MAX_COLUMNS:
                raise Unreadable("too many columns")
            _spend(budget, max(1, at - len(cells) + 1))
            cells += [None] * (at - len(cells))
            cells.append(_sheet_cell(cell, strings))
        if any(cell not in (None, "") for cell in cells):
            grid.append(cells)
    return grid


def _column_number(reference: str, default: int) -> int:
    match = _LETTERS.match(reference)
    if match is None:
        return default
    number = 0
    for letter in match[0]:
        number = number * 26 + ord(letter) - 64
    return max(number - 1, default)


def _sheet_cell(cell: ElementTree.Element, strings: list[str]) -> Cell:
    kind = cell.get("t", "n")
    text = "".join(e.text or "" for e in cell.iter() if _tag(e) in ("v", "t"))
    if kind == "s":
        return strings[int(text)]
    if kind == "b":
        return text.strip() == "1"
    if kind == "n" and text.strip():
        return Decimal(text.strip()) if len(text) <= MAX_NUMBER_CHARS else text
    return text or None
