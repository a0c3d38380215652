"""Byte-stable writers for case files: UTF-8, LF, keys and numbers always spelled the same way."""

import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MANIFEST = "MANIFEST.sha256"
_SKIPPED = {"__pycache__", MANIFEST}


def number_text(value: float, digits: int | None = None) -> str:
    """Return the shortest decimal of a number, rounded first when `digits` is given."""
    rounded = value if digits is None else round(value, digits)
    return str(int(rounded)) if rounded == int(rounded) else repr(float(rounded))


def csv_text(columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> str:
    """Return a CSV text with a header, LF line ends and only the named columns."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row[column]) for column in columns] for row in rows)
    return stream.getvalue()


def _cell(value: object) -> object:
    return number_text(value) if isinstance(value, float) else value


def json_text(value: Any) -> str:
    """Return an indented JSON text in the given key order, with a final line end."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write(path: Path, text: str) -> None:
    """Write a text file as UTF-8 with LF, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8"))


def manifest_text(case_root: Path) -> str:
    """Return the lines `<sha256>  <path>` of every file of a case except the manifest itself."""
    lines = []
    for path in sorted(case_root.rglob("*")):
        relative = path.relative_to(case_root)
        if path.is_file() and not _SKIPPED & set(relative.parts):
            lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {relative.as_posix()}")
    return "\n".join(sorted(lines, key=lambda line: line[66:])) + "\n"


def write_manifest(case_root: Path) -> None:
    """Write MANIFEST.sha256 of a case folder."""
    write(case_root / MANIFEST, manifest_text(case_root))
