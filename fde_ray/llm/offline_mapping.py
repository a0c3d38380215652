"""Brings a deliverable into the form of a submission schema by declared names alone.

Standard library only: the offline extractor sends this file into the grading sandbox and runs it
there. It changes file names, column names, layout and units, never a decision: no row is added or
moved, and one is dropped only outside the graded set, with the counts told.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator
from decimal import Context, Decimal, InvalidOperation
from typing import Any

Json = dict[str, Any]
Row = dict[str, "str | None"]
Columns = dict[str, tuple[str, Decimal]]

SUMMARY = "_agent_summary.md"
RESULT = "_result.json"
NOT_DELIVERABLES = {"NOTES.md", "instruction.md", "information.md", "submission_schema.json"}
MAX_BYTES = 256 * 2**20
EXACT = Context(prec=50)
ROUNDED = Context(prec=12)  # a declared factor such as 1/60 is itself rounded; values are not


def main(task: Json) -> None:
    """Map every file of `task["schema"]` and write `_result.json`; prints what was done."""
    found = workspace_files(task["workspace"])
    summary = read_text(os.path.join(task["workspace"], SUMMARY))
    report: Json = {
        "status": "success",
        "notes": "",
        "files_found": sorted(found),
        "files_normalized": [],
        "sources": {},
        "unit_factors": {},
        "rows": {},
    }
    notes: list[str] = []
    files = task["schema"].get("files", [])
    for target in files:
        try:
            map_file(task, target, designated(summary, found), found, report, notes)
        except (OSError, ValueError) as error:
            notes.append(f"{target['name']}: {error}")
    written = len(report["files_normalized"])
    if written < len(files):
        report["status"] = "partial" if written else "failed"
    elif any(note.startswith("incomplete") for note in notes):
        report["status"] = "partial"
    report["notes"] = "; ".join(notes)[:4000] or "mapped by the declared names"
    write(os.path.join(task["output_dir"], RESULT), json.dumps(report, indent=1).encode())
    print(report["status"], report["files_normalized"], report["notes"])


def map_file(
    task: Json,
    target: Json,
    named: list[str],
    found: dict[str, str],
    report: Json,
    notes: list[str],
) -> None:
    """Write one file of the schema; ValueError when nothing in the workspace is it."""
    name, data, table = best_source(target, named, found)
    if table is None:
        result = data
    else:
        columns = matched_columns(target, table.columns)
        for field in target["fields"]:
            if field["name"] not in columns and field.get("role") != "informational":
                notes.append(f"incomplete: no column for {field['name']}")
        rows = kept_rows(target, columns, table, report, notes)
        is_same = table.format == target["format"] and len(rows) == len(table.rows)
        exact = [field["name"] for field in target["fields"]] == table.columns
        result = data if is_same and exact else rendered(target, columns, rows)
        for field, (_, factor) in sorted(columns.items()):
            if factor != 1:
                report["unit_factors"][field] = float(factor)
    write(os.path.join(task["output_dir"], target["name"]), result)
    report["files_normalized"].append(target["name"])
    source = {"path": name, "sha256": hashlib.sha256(data).hexdigest()}
    report["sources"][target["name"]] = [source]
    if name != target["name"]:
        notes.append(f"{target['name']} comes from {name}")
    if target["name"].endswith(".py"):
        copy_modules(task, name, found, report)


def copy_modules(task: Json, entry: str, found: dict[str, str], report: Json) -> None:
    """Copy the Python files beside a program and below it: what it may import."""
    taken = {entry, *(file["name"] for file in task["schema"]["files"])}
    for name, path in found.items():
        inside = os.path.relpath(name, os.path.dirname(entry) or ".")
        if name in taken or inside in taken or inside.startswith("..") or name[-3:] != ".py":
            continue
        data = read_bytes(path)
        write(os.path.join(task["output_dir"], inside), data)
        source = {"path": name, "sha256": hashlib.sha256(data).hexdigest()}
        report["sources"][inside] = [source]


# what is in the workspace


def workspace_files(root: str) -> dict[str, str]:
    """Return {relative path: absolute path} of regular files that may be deliverables."""
    found: dict[str, str] = {}
    for folder, folders, names in os.walk(root):
        if folder == root:
            folders[:] = [name for name in folders if name != "data"]
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, root)
            is_ours = name.startswith((".", "_")) and name != "__init__.py"
            is_ours = is_ours or relative in NOT_DELIVERABLES
            if not is_ours and os.path.isfile(path) and not os.path.islink(path):
                found[relative] = path
    return found


def designated(summary: str, found: dict[str, str]) -> list[str]:
    """Return the files that the summary names, in the order of their mention."""
    places = []
    for name in found:
        for spelling in {name, os.path.basename(name)}:
            match = re.search(rf"(?<![\w/.-]){re.escape(spelling)}(?![\w/-])", summary)
            if match:
                places.append((match.start(), name))
                break
    return [name for _, name in sorted(places)]


def best_source(
    target: Json, named: list[str], found: dict[str, str]
) -> tuple[str, bytes, Table | None]:
    """Return (name, bytes, table) of the file that is `target`: designation decides first."""
    names = [target["name"], *target.get("aliases", [])]
    groups = [named] if named else []
    groups.append([n for n in found if os.path.basename(n) in names])
    groups.append(sorted(found))
    for group in groups:
        fitting = []
        for place, name in enumerate(group):
            data = read_bytes(found[name])
            table = None if target["format"] == "text" else read_table(name, data)
            if target["format"] == "text":
                fit = 1 if os.path.basename(name) in names else 0
            else:
                fit = 0 if table is None else len(matched_columns(target, table.columns))
            known = os.path.basename(name) in names
            if fit:
                fitting.append((-fit, not known, place, name, data, table))
        if fitting:
            best = min(fitting, key=lambda one: one[:3])
            return best[3], best[4], best[5]
    raise ValueError("nothing in the workspace fits")


# tables


class Table:
    """Cells are text as written, None = absent."""

    def __init__(self, kind: str, columns: list[str], rows: list[Row]) -> None:
        self.format, self.columns, self.rows = kind, columns, rows


def read_table(name: str, data: bytes) -> Table | None:
    """Return the table in a CSV, TSV, JSON or JSON-lines file; None when it is none."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    extension = os.path.splitext(name)[1].lower()
    try:
        if extension in (".json", ".jsonl", ".ndjson"):
            return json_table(text, extension != ".json")
        if extension in (".csv", ".tsv", ".txt"):
            return csv_table(text)
    except (ValueError, RecursionError, csv.Error):
        return None
    return None


def csv_table(text: str) -> Table | None:
    head = text.split("\n", 1)[0]
    delimiter = max(",;\t|", key=head.count)
    rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row]
    if not rows or len(set(rows[0])) != len(rows[0]):
        return None
    columns = [name.strip() for name in rows[0]]
    cells: list[Row] = [dict(zip(columns, row, strict=False)) for row in rows[1:]]
    return Table("csv", columns, cells)


def json_table(text: str, is_lines: bool) -> Table | None:
    if is_lines:
        records = [load_json(line) for line in text.split("\n") if line.strip()]
    else:
        records = records_in(load_json(text))
    if not records or not all(isinstance(one, dict) for one in records):
        return None
    columns: list[str] = []
    for record in records:
        columns += [name for name in record if name not in columns]
    return Table("json", columns, [{k: cell_of(v) for k, v in one.items()} for one in records])


def records_in(value: Any) -> list[Any]:
    """Return the list of records: the value itself, the only list inside it, or its columns."""
    if isinstance(value, list):
        return value
    if not isinstance(value, dict):
        return []
    lists = [one for one in value.values() if isinstance(one, list)]
    of_records = [one for one in lists if one and all(isinstance(x, dict) for x in one)]
    if len(of_records) == 1:
        return of_records[0]
    if lists and len(lists) == len(value) and len({len(one) for one in lists}) == 1:
        return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]
    return []


def load_json(text: str) -> Any:
    return json.loads(text, parse_float=Decimal, parse_constant=reject)


def reject(name: str) -> None:
    raise ValueError(f"{name} is no number")


def cell_of(value: Any) -> str | None:
    """Return the text of a JSON scalar; None stays None."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return plain(value)
    if isinstance(value, int):
        return str(value)
    return json.dumps(value, default=str)


# from their columns to ours


def canonical(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", str(name).lower()).strip("_")


def matched_columns(target: Json, columns: list[str]) -> Columns:
    """Return {field: (column, factor)}: own name first, then the aliases in order."""
    by_name: dict[str, str] = {}
    for column in columns:
        by_name.setdefault(canonical(column), column)
    matched: Columns = {}
    for field in target["fields"]:
        for name, factor in spellings(field):
            if canonical(name) in by_name:
                matched[field["name"]] = (by_name[canonical(name)], factor)
                break
    return matched


def spellings(field: Json) -> Iterator[tuple[str, Decimal]]:
    yield field["name"], Decimal(1)
    for alias in field.get("aliases", []):
        if isinstance(alias, dict):
            yield alias["name"], Decimal(repr(alias.get("factor", 1)))
        else:
            yield alias, Decimal(1)


def kept_rows(
    target: Json, columns: Columns, table: Table, report: Json, notes: list[str]
) -> list[Row]:
    """Return the rows to write: all, but for keys outside a graded set's declared range."""
    if target["row_set"] != "graded":
        return table.rows
    keys = [
        (columns[field["name"]][0], field["range"])
        for field in target["fields"]
        if field.get("role") in ("grouping_key", "identifier")
        and field.get("range")
        and field["name"] in columns
    ]
    kept = [row for row in table.rows if all(within(row.get(c), bounds) for c, bounds in keys)]
    if len(kept) != len(table.rows):
        reason = "keys outside the graded set"
        change = {"before": len(table.rows), "after": len(kept), "reason": reason}
        report["rows"][target["name"]] = change
        notes.append(f"{target['name']}: {len(kept)} of {len(table.rows)} rows kept")
    return kept


def within(cell: str | None, bounds: list[float]) -> bool:
    value = number(cell)
    if value is None:
        return True
    return Decimal(repr(bounds[0])) <= value <= Decimal(repr(bounds[1]))


def converted(cell: str | None, field: Json, factor: Decimal) -> str | None:
    """Return the cell in our unit; what is no number stays as it is."""
    if cell is None or field["type"] not in ("integer", "number"):
        return cell
    value = number(cell)
    if value is None:
        return cell
    if factor != 1:
        return plain(ROUNDED.plus(EXACT.multiply(value, factor)))
    if field["type"] == "integer" and value == value.to_integral_value():
        return plain(value.to_integral_value())
    return cell.strip()


def number(cell: str | None) -> Decimal | None:
    try:
        value = Decimal(str(cell).strip())
    except InvalidOperation:
        return None
    return value if value.is_finite() else None


def plain(value: Decimal) -> str:
    """Return a decimal without exponent and without zeros that say nothing."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


# writing


def rendered(target: Json, columns: Columns, rows: list[Row]) -> bytes:
    fields = [field for field in target["fields"] if field["name"] in columns]
    lines = []
    for row in rows:
        cells = []
        for field in fields:
            column, factor = columns[field["name"]]
            cells.append(converted(row.get(column), field, factor))
        lines.append(cells)
    if target["format"] == "json":
        return json_text(fields, lines).encode()
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([field["name"] for field in fields])
    writer.writerows([["" if cell is None else cell for cell in cells] for cells in lines])
    return out.getvalue().encode()


def json_text(fields: list[Json], lines: list[list[str | None]]) -> str:
    """Spell records by hand, so that numbers keep every digit."""
    records = []
    for cells in lines:
        pairs = [
            f"{json.dumps(field['name'])}: {json_scalar(cell, field)}"
            for field, cell in zip(fields, cells, strict=True)
        ]
        records.append("{" + ", ".join(pairs) + "}")
    return "[\n" + ",\n".join(records) + "\n]\n"


def json_scalar(cell: str | None, field: Json) -> str:
    if cell is None or (cell == "" and field["type"] != "string"):
        return "null"
    value = number(cell)
    if field["type"] in ("integer", "number") and value is not None:
        return plain(value)
    if field["type"] == "boolean" and cell in ("true", "false"):
        return cell
    return json.dumps(cell)


def read_bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{os.path.basename(path)} is too large")
    return data


def read_text(path: str) -> str:
    try:
        return read_bytes(path).decode("utf-8", "replace")
    except OSError:
        return ""


def write(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
