"""Turns a deliverable with foreign names into the target files, by declared aliases alone.

No value is guessed: a file is found by its name or an alias, a field by its name or an alias, and a
number changes only by the alias's unit factor.
"""

import csv
import io
import json
from collections.abc import Mapping
from typing import Any

from fde_ray.cases.authoring.writers import csv_text, number_text
from fde_ray.cases.records import SchemaFile, SubmissionSchema

Row = Mapping[str, Any]


def normalised(schema: SubmissionSchema, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return target name -> content for every file of the schema that can be found.

    A file that already carries its target name is kept as it is. ValueError tells which foreign
    file cannot be read or lacks a field.
    """
    found: dict[str, bytes] = {}
    for target in schema.files:
        if target.name in files:
            found[target.name] = files[target.name]
            continue
        for alias in target.aliases:
            if alias in files:
                found[target.name] = _converted(target, alias, files[alias])
                break
    return found


def _converted(target: SchemaFile, name: str, content: bytes) -> bytes:
    if target.format == "text":
        return content
    rows = [_renamed(target, row, name) for row in _rows(name, content)]
    if target.format == "json":
        return json.dumps(rows, indent=1).encode()
    return csv_text([field.name for field in target.fields], rows).encode()


def _rows(name: str, content: bytes) -> list[Row]:
    text = content.decode("utf-8-sig")
    if not name.endswith(".json"):
        return list(csv.DictReader(io.StringIO(text, newline="")))
    document = json.loads(text)
    if isinstance(document, dict):
        lists = [value for value in document.values() if isinstance(value, list)]
        document = lists[0] if len(lists) == 1 else None
    if not isinstance(document, list) or not all(isinstance(row, dict) for row in document):
        raise ValueError(f"{name}: holds no list of records")
    return document


def _renamed(target: SchemaFile, row: Row, name: str) -> dict[str, Any]:
    renamed: dict[str, Any] = {}
    for field in target.fields:
        if field.name in row:
            renamed[field.name] = row[field.name]
            continue
        alias = next((alias for alias in field.renamings() if alias.name in row), None)
        if alias is None:
            raise ValueError(f"{name}: nothing is named like {field.name}")
        value = row[alias.name]
        if alias.factor != 1.0:
            value = number_text(float(value) * alias.factor, 9)
        renamed[field.name] = value
    return renamed
