"""Mutants: a few edits to the reference deliverable, with the rule codes they must raise.

An edit is one object with `op`, `file` and the op's own keys. Rows count from 0, header excluded.
`set` row, field, value · `column` field, values · `swap` rows [a, b] · `move` row, to · `drop` row
· `append` values {field: text} · `drop_column` field · `text` text · `replace` old, new (old stands
there once) · `remove`. In an executable case an edit may also name an answer of the program.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from fde_ray.cases.authoring.writers import csv_text


@dataclass(frozen=True)
class Mutant:
    """code: the rule under test; side: just inside passes, just outside raises exactly `codes`.

    `neutral` mutants test no rule; they must stay valid and change raw or components.
    """

    name: str
    code: str
    side: Literal["inside", "outside", "neutral"]
    codes: tuple[str, ...]
    edits: tuple[Mapping[str, Any], ...]


def read_mutant(text: str, name: str) -> Mutant:
    """Return the mutant in a JSON text; ValueError tells what is wrong with it."""
    record = json.loads(text)
    if not isinstance(record, dict) or set(record) != {
        "code",
        "side",
        "codes",
        "edits",
    }:
        raise ValueError("a mutant has exactly the keys code, side, codes, edits")
    codes, edits = record["codes"], record["edits"]
    if record["side"] not in ("inside", "outside", "neutral"):
        raise ValueError(f"side is inside, outside or neutral, not {record['side']!r}")
    if not isinstance(record["code"], str) or not isinstance(codes, list):
        raise ValueError("code is a text and codes a list")
    if not isinstance(edits, list) or not all(isinstance(edit, dict) for edit in edits):
        raise ValueError("edits is a list of objects")
    side = cast("Literal['inside', 'outside', 'neutral']", record["side"])
    return Mutant(name, record["code"], side, tuple(map(str, codes)), tuple(edits))


def mutant_text(mutant: Mutant) -> str:
    """Return the JSON text of a mutant file."""
    head = {"code": mutant.code, "side": mutant.side, "codes": list(mutant.codes)}
    opening = json.dumps(head, ensure_ascii=False)[:-1]
    edits = ",\n ".join(json.dumps(edit, ensure_ascii=False) for edit in mutant.edits)
    return f'{opening}, "edits": [\n {edits}]}}\n'


def mutated(files: Mapping[str, bytes], edits: Sequence[Mapping[str, Any]]) -> dict[str, bytes]:
    """Return the files after the edits; ValueError or KeyError if an edit does not fit them."""
    edited = dict(files)
    for edit in edits:
        name = edit["file"]
        if edit["op"] == "remove":
            del edited[name]
        elif edit["op"] == "text":
            edited[name] = str(edit["text"]).encode("utf-8")
        elif edit["op"] == "replace":
            edited[name] = _replaced(edited[name].decode("utf-8"), edit["old"], edit["new"])
        else:
            edited[name] = _edited_table(edited[name], edit)
    return edited


def _replaced(text: str, old: str, new: str) -> bytes:
    if text.count(old) != 1:
        raise ValueError(f"{old[:80]!r} stands there {text.count(old)} times, not once")
    return text.replace(old, new).encode("utf-8")


def _edited_table(content: bytes, edit: Mapping[str, Any]) -> bytes:
    table = list(csv.reader(io.StringIO(content.decode("utf-8"), newline="")))
    columns = table[0]
    rows = [dict(zip(columns, cells, strict=True)) for cells in table[1:]]
    match edit["op"]:
        case "set":
            rows[edit["row"]][edit["field"]] = str(edit["value"])
        case "column":
            for row, value in zip(rows, edit["values"], strict=True):
                row[edit["field"]] = str(value)
        case "swap":
            first, second = edit["rows"]
            rows[first], rows[second] = rows[second], rows[first]
        case "move":
            rows.insert(edit["to"], rows.pop(edit["row"]))
        case "drop":
            rows.pop(edit["row"])
        case "append":
            rows.append({column: str(edit["values"][column]) for column in columns})
        case "drop_column":
            columns = [column for column in columns if column != edit["field"]]
        case unknown:
            raise ValueError(f"unknown edit {unknown!r}")
    return csv_text(columns, rows).encode("utf-8")


def files_under(folder: Path) -> dict[str, bytes]:
    """Return the regular files of a folder tree by relative path; links are refused."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise ValueError(f"{path.name} is a link")
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found
