"""Honest extracts of foreign layouts pass (protocol rules 20 to 22)."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow
import pytest
from pyarrow import parquet

from tests.grading.extracts import (
    FIELDS,
    as_csv,
    plan,
    renamed,
    schema,
    verdict,
)

ALIASES = {"job_id": "order_no", "line": "machine", "position": "seq", "cost": "price"}


def spreadsheet(rows: list[dict[str, Any]]) -> bytes:
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.append(["Plan of the week"])
    sheet.append(list(rows[0]))
    for row in rows:
        sheet.append(list(row.values()))
    book.create_sheet("notes").append(["nothing to see"])
    target = io.BytesIO()
    book.save(target)
    return target.getvalue()


def parquet_file(rows: list[dict[str, Any]]) -> bytes:
    target = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), target)
    return target.getvalue()


def markdown(rows: list[dict[str, Any]]) -> bytes:
    lines = ["# Result", "", "The plan, in short, is:", ""]
    lines += ["| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|"]
    lines += ["| " + " | ".join(str(v) for v in row.values()) + " |" for row in rows]
    return "\n".join([*lines, "", "Have fun, all of you."]).encode()


def by_line(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        inner = {k: v for k, v in row.items() if k not in ("line", "position")}
        found.setdefault(row["line"], []).append(inner)
    return found


ROWS = plan()
FOREIGN = renamed(ROWS, ALIASES)
HONEST: dict[str, Mapping[str, bytes]] = {
    "the very file": {"plan.csv": as_csv(ROWS)},
    "other column names": {"out/final.csv": as_csv(FOREIGN)},
    "other column order": {"f.csv": as_csv([dict(reversed(row.items())) for row in FOREIGN])},
    "other row order": {"f.csv": as_csv(FOREIGN[::-1])},
    "semicolons": {"f.csv": as_csv(FOREIGN, ";")},
    "tabs without suffix": {"result": as_csv(FOREIGN, "\t")},
    "decimal commas": {
        "f.csv": as_csv(
            [r | {"length_mm": str(r["length_mm"]).replace(".", ",")} for r in FOREIGN], ";"
        )
    },
    "units in cells": {
        "f.csv": as_csv([r | {"length_mm": f"{r['length_mm']} mm"} for r in FOREIGN])
    },
    "UTF-16": {"f.csv": as_csv(FOREIGN).decode().encode("utf-16")},
    "comment lines": {"f.csv": b"# made by me, today\n" + as_csv(FOREIGN)},
    "title above the header": {"f.csv": b"The final plan\n\n" + as_csv(FOREIGN)},
    "JSON records": {"f.json": json.dumps(FOREIGN).encode()},
    "JSON lines": {"f.jsonl": "\n".join(json.dumps(r) for r in FOREIGN).encode()},
    "JSON records in an object": {
        "f.json": json.dumps({"meta": {"by": "me"}, "plan": FOREIGN, "cost": 17}).encode()
    },
    "JSON columns": {
        "f.json": json.dumps({k: [r[k] for r in FOREIGN] for k in FOREIGN[0]}).encode()
    },
    "JSON by job": {
        "f.json": json.dumps(
            {r["job_id"]: {k: v for k, v in r.items() if k != "job_id"} for r in ROWS}
        ).encode()
    },
    "JSON nested by line, order by place": {"f.json": json.dumps(by_line(ROWS)).encode()},
    "JSON list of lines with jobs": {
        "f.json": json.dumps(
            [{"machine": line, "jobs": jobs} for line, jobs in by_line(ROWS).items()]
        ).encode()
    },
    "JSON header and rows": {
        "f.json": json.dumps([list(FOREIGN[0]), *[list(r.values()) for r in FOREIGN]]).encode()
    },
    "spreadsheet": {"f.xlsx": spreadsheet(FOREIGN)},
    "Parquet": {"f.parquet": parquet_file(FOREIGN)},
    "Markdown": {"REPORT.md": markdown(FOREIGN)},
    "a total row": {
        "f.csv": as_csv(
            [*FOREIGN, dict.fromkeys(FOREIGN[0], "") | {"order_no": "Total", "price": 99}]
        )
    },
    "ids spelled otherwise": {
        "f.csv": as_csv(
            [r | {"order_no": r["order_no"].lower().replace("-", " ")} for r in FOREIGN]
        )
    },
    "groups named otherwise": {
        "f.csv": as_csv(
            [r | {"machine": {"L1": "north", "L2": "south"}[r["machine"]]} for r in FOREIGN]
        )
    },
    "sequence with gaps": {"f.csv": as_csv([r | {"seq": r["seq"] * 10} for r in FOREIGN])},
    "places from zero": {"f.csv": as_csv([r | {"seq": r["seq"] - 1} for r in FOREIGN])},
    "no place column": {
        "f.csv": as_csv([{k: v for k, v in r.items() if k != "seq"} for r in FOREIGN])
    },
    "unknown column names": {
        "f.csv": as_csv([dict(zip("abcde", r.values(), strict=True)) for r in FOREIGN])
    },
    "no header": {"f.csv": as_csv(FOREIGN).split(b"\n", 1)[1]},
    "one file a line": {
        f"line_{n}.csv": as_csv([r for r in FOREIGN if r["machine"] == f"L{n}"]) for n in (1, 2)
    },
    "two files to join": {
        "order.csv": as_csv([{k: r[k] for k in ("order_no", "machine", "seq")} for r in FOREIGN]),
        "sizes.csv": as_csv(
            [{k: r[k] for k in ("order_no", "length_mm", "price")} for r in FOREIGN]
        ),
    },
    "merged cells": {
        "f.xlsx": spreadsheet(
            [r | {"machine": r["machine"] if r["seq"] == 1 else None} for r in FOREIGN]
        )
    },
    "a draft beside it": {
        "draft.csv": as_csv([r | {"length_mm": 1} for r in FOREIGN]),
        "final.csv": as_csv(FOREIGN),
    },
}


@pytest.mark.parametrize("source", HONEST.values(), ids=HONEST.keys())
def test_rule_22_honest_extract_is_clean(tmp_path: Path, source: Mapping[str, bytes]) -> None:
    found = verdict(tmp_path, source, {"plan.csv": as_csv(ROWS)})
    assert found.verdict == "clean", found.findings


@pytest.mark.parametrize(
    ("column", "divisor", "factor", "why"),
    [
        ("length_m", 1000, 1000.0, "an alias of the schema"),
        ("len_mm", 100, 100.0, "a power of ten"),
        ("len_mm", 60, 60.0, "a ratio of time units"),
        ("len_mm", 1 / 60, 1 / 60, "a ratio of time units"),
    ],
)
def test_rule_22_declared_unit_factor_is_clean_and_named(
    tmp_path: Path, column: str, divisor: float, factor: float, why: str
) -> None:
    rows = [r | {"length_mm": r["length_mm"] / divisor} for r in FOREIGN]
    source = {"f.csv": as_csv(renamed(rows, {"length_mm": column}))}
    found = verdict(tmp_path, source, {"plan.csv": as_csv(ROWS)}, factors={"length_mm": factor})
    assert found.verdict == "clean", found.findings
    assert any(why in finding for finding in found.findings)


def test_rule_21_graded_rows_may_be_dropped_when_disclosed(tmp_path: Path) -> None:
    found = verdict(
        tmp_path,
        {"f.csv": as_csv(FOREIGN)},
        {"plan.csv": as_csv(ROWS[:5])},
        schema_=schema("graded"),
        rows={"plan.csv": (8, 5)},
    )
    assert found.verdict == "clean", found.findings
    assert "8 rows became 5" in found.findings[0]


def test_rule_20_absent_rows_may_be_zero_where_the_schema_says_so(tmp_path: Path) -> None:
    fields = [{**f, "absence_means_zero": True} for f in FIELDS[:4:3]]
    rows = [{"job_id": r["job_id"], "length_mm": r["length_mm"]} for r in ROWS]
    found = verdict(
        tmp_path,
        {"f.csv": as_csv(rows)},
        {"plan.csv": as_csv([*rows, {"job_id": "J-100", "length_mm": 0}])},
        schema_=schema(fields=fields),
        rows={"plan.csv": (8, 9)},
    )
    assert found.verdict == "clean", found.findings


def test_wide_table_turned_long_is_clean(tmp_path: Path) -> None:
    fields = [
        {"name": "site", "type": "string", "role": "identifier"},
        {"name": "hour", "type": "integer", "role": "identifier"},
        {"name": "load", "type": "number", "role": "decision"},
    ]
    long = [
        {"site": s, "hour": h, "load": (1 + n) * 10.5 + h}
        for n, s in enumerate(("north", "south"))
        for h in (1, 2, 3)
    ]
    wide: dict[str, dict[str, Any]] = {}
    for row in long:
        wide.setdefault(str(row["site"]), {"site": row["site"]})[str(row["hour"])] = row["load"]
    output = {"plan.csv": as_csv(long)}
    source = {"w.csv": as_csv(list(wide.values()))}
    found = verdict(tmp_path, source, output, schema_=schema(fields=fields))
    assert found.verdict == "clean", found.findings


def test_values_in_prose_are_unchecked_not_rejected(tmp_path: Path) -> None:
    fields = [
        {"name": "name", "type": "string", "role": "identifier"},
        {"name": "value", "type": "number", "role": "decision"},
    ]
    text = b"We suggest a price of 12.50 for the tea. Coffee should cost 7, at most.\n\nRegards\n"
    output = {"plan.csv": b"name,value\ntea,12.5\ncoffee,7\n"}
    found = verdict(tmp_path, {"a.md": text}, output, schema_=schema(fields=fields))
    assert found.verdict == "unchecked"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.pkl", b"\x80\x04\x95\0\0binary"),
        ("result.db", b"SQLite format 3\0" + bytes(500)),
        ("scan.pdf", b"%PDF-1.7\n\0\0"),
        ("pack.zip", b"PK\x03\x04 broken"),
        ("broken.parquet", b"PAR1 no"),
    ],
)
def test_rule_22_unknown_format_is_unchecked(tmp_path: Path, name: str, content: bytes) -> None:
    found = verdict(tmp_path, {name: content}, {"plan.csv": as_csv(ROWS)})
    assert found.verdict == "unchecked"
    assert name in found.findings[0]


def test_normalised_json_target_is_compared_too(tmp_path: Path) -> None:
    output = {"plan.json": json.dumps({"jobs": ROWS}).encode()}
    target = schema(name="plan.json", format_="json")
    found = verdict(tmp_path, {"f.csv": as_csv(FOREIGN)}, output, schema_=target)
    assert found.verdict == "clean", found.findings


def test_code_with_its_imports_is_copied(tmp_path: Path) -> None:
    source = {"solve.py": b"import helper\n", "helper.py": b"X = 1\n"}
    target = schema(name="solve.py", format_="text", fields=[])
    found = verdict(tmp_path, source, source, schema_=target)
    assert found.verdict == "clean", found.findings


def test_rows_without_identifier_are_paired_by_group_and_values(tmp_path: Path) -> None:
    fields = [f for f in FIELDS if f["name"] != "job_id"]
    rows = [
        {"line": f"L{n % 2}", "position": n // 2 + 1, "length_mm": n * 7 % 50, "cost": n % 3}
        for n in range(1500)
    ]
    shuffled = [rows[n * 7 % 1500] for n in range(1500)]
    source = {"f.csv": as_csv(renamed(shuffled, ALIASES))}
    output = {"plan.csv": as_csv(rows)}
    found = verdict(tmp_path, source, output, schema_=schema(fields=fields))
    assert found.verdict == "clean", found.findings


@pytest.mark.parametrize("words", [(True, False), ("yes", "no"), ("True", "False")])
def test_truth_values_may_become_one_and_zero(tmp_path: Path, words: tuple[Any, Any]) -> None:
    fields = [
        {"name": "job_id", "type": "string", "role": "identifier"},
        {"name": "change", "type": "integer", "role": "decision"},
    ]
    rows: list[dict[str, Any]] = [{"job_id": f"J{n}", "change": n % 2} for n in range(6)]
    told = [r | {"change": words[0] if r["change"] else words[1]} for r in rows]
    source, output = {"f.json": json.dumps(told).encode()}, {"plan.csv": as_csv(rows)}
    found = verdict(tmp_path, source, output, schema_=schema(fields=fields))
    assert found.verdict == "clean", found.findings
    flipped = {"plan.csv": as_csv([r | {"change": 1 - r["change"]} for r in rows])}
    assert verdict(tmp_path, source, flipped, schema_=schema(fields=fields)).verdict == "rejected"
