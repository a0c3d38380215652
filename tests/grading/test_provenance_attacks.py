"""Extracts that break a rule are rejected; hostile files crash nothing (protocol rules 20 to 22).

One part of rule 20 cannot be decided from the files alone: that the most precise of several equal
artifacts was taken, and that the summary's designation was followed. An extract of the less precise
one comes from the agent's files too; the panel's vote is what stands against it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fde_ray.grading.checker.documents import tables_of
from fde_ray.grading.checker.reading import Unreadable
from fde_ray.grading.provenance import check, verdict_of
from fde_ray.model.errors import EvaluatorFault
from fde_ray.model.failures import FailureKind
from fde_ray.model.grading import ExtractionReport, SourceRef
from fde_ray.sandbox.records import Completed
from tests.grading.doubles import LocalRunOnce, ended_with
from tests.grading.extracts import (
    FIELDS,
    Row,
    as_csv,
    plan,
    renamed,
    reported,
    schema,
    verdict,
    write,
)

ROWS = plan()
NAMES = {"job_id": "order_no", "line": "machine", "position": "seq", "cost": "price"}
LAYOUTS: dict[str, Mapping[str, bytes]] = {
    "csv": {"f.csv": as_csv(renamed(ROWS, NAMES))},
    "same-names": {"f.csv": as_csv(ROWS)},
    "json": {"f.json": json.dumps({"plan": renamed(ROWS, NAMES)}).encode()},
}


def changed(place: int, **values: Any) -> list[Row]:
    return [row | values if n == place else row for n, row in enumerate(ROWS)]


def swapped(field: str, one: int, other: int) -> list[Row]:
    rows = plan()
    rows[one][field], rows[other][field] = rows[other][field], rows[one][field]
    return rows


BROKEN: dict[str, list[Row]] = {
    "a value changed": changed(2, length_mm=2001),
    "a value changed a little": changed(2, length_mm=2000.0001),
    "a value rounded": changed(1, length_mm=850),
    "values swapped between rows": swapped("length_mm", 0, 1),
    "a value from another column": changed(0, length_mm=ROWS[0]["cost"]),
    "a value blanked": changed(0, length_mm=""),
    "a value made no number": changed(0, length_mm="nan"),
    "all values scaled without saying so": [r | {"length_mm": r["length_mm"] * 1000} for r in ROWS],
    "a derived value recomputed": changed(3, cost=13.5),
    "a row added": [*ROWS, ROWS[0] | {"job_id": "J-999", "position": 5}],
    "a row doubled": [*ROWS, ROWS[0]],
    "a row dropped": ROWS[:-1],
    "half the rows dropped": ROWS[:4],
    "all rows dropped but one": ROWS[:1],
    "two identifiers merged": changed(1, job_id="J-000"),
    "identifiers swapped": swapped("job_id", 0, 5),
    "an identifier invented": changed(1, job_id="J-777"),
    "a job moved to another group": changed(0, line="L2"),
    "groups merged": [r | {"line": "L1"} for r in ROWS],
    "the order scrambled": swapped("position", 0, 3),
    "the order reversed": [r | {"position": 9 - r["position"]} for r in ROWS],
    "two on one place": changed(1, position=1),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("rows", BROKEN.values(), ids=BROKEN.keys())
def test_rule_20_extract_that_breaks_a_rule_is_rejected(
    tmp_path: Path, layout: Mapping[str, bytes], rows: list[Row]
) -> None:
    found = verdict(tmp_path, layout, {"plan.csv": as_csv(rows)})
    assert found.verdict == "rejected", found.findings
    assert found.findings


def test_rule_20_order_scrambled_against_places_is_rejected(tmp_path: Path) -> None:
    source = [{k: v for k, v in r.items() if k != "position"} for r in ROWS]
    rows = swapped("position", 0, 3)
    found = verdict(tmp_path, {"f.csv": as_csv(source)}, {"plan.csv": as_csv(rows)})
    assert found.verdict == "rejected"


def test_rule_22_a_file_behind_too_many_others_does_not_go_unchecked(tmp_path: Path) -> None:
    copy = LAYOUTS["csv"]["f.csv"]
    output = {f"a/{n:04d}.csv": copy for n in range(2_000)}
    output["plan.csv"] = as_csv(changed(2, length_mm=2001))
    assert verdict(tmp_path, LAYOUTS["csv"], output).verdict == "rejected"


@pytest.mark.parametrize("rows", [ROWS[:-1], [*ROWS, ROWS[0] | {"job_id": "J-999"}]])
def test_rule_21_decision_rows_are_fixed_even_when_disclosed(
    tmp_path: Path, rows: list[Row]
) -> None:
    output, counts = {"plan.csv": as_csv(rows)}, {"plan.csv": (8, len(rows))}
    found = verdict(tmp_path, LAYOUTS["csv"], output, rows=counts)
    assert found.verdict == "rejected"


@pytest.mark.parametrize("counts", [None, (8, 6), (9, 7), (7, 7), (0, 0)])
def test_rule_20_dropped_rows_need_true_counts(
    tmp_path: Path, counts: tuple[int, int] | None
) -> None:
    told = {"plan.csv": counts} if counts else None
    output = {"plan.csv": as_csv(ROWS[:-1])}
    found = verdict(tmp_path, LAYOUTS["csv"], output, rows=told, schema_=schema("graded"))
    assert found.verdict == "rejected"


def test_rule_21_best_rows_of_two_artifacts_cannot_be_picked(tmp_path: Path) -> None:
    draft = [r | {"length_mm": r["length_mm"] + 1} for r in ROWS]
    source = {"a.csv": as_csv(ROWS), "b.csv": as_csv(draft)}
    for row_set in ("graded", "decision"):
        found = verdict(
            tmp_path,
            source,
            {"plan.csv": as_csv([*ROWS[:4], *draft[4:]])},
            schema_=schema(row_set),
            rows={"plan.csv": (16, 8)},
        )
        assert found.verdict == "rejected"


@pytest.mark.parametrize(
    "text",
    [
        as_csv(ROWS) + b"#J-999,L1,9,5,5\n",
        as_csv(ROWS).replace(b",", b";"),
        b"length_mm\n1\n" + as_csv(ROWS),
    ],
    ids=["commented-row", "other-delimiter", "header-before-the-header"],
)
def test_normalised_csv_is_read_as_the_grader_reads_it(tmp_path: Path, text: bytes) -> None:
    assert verdict(tmp_path, LAYOUTS["csv"], {"plan.csv": text}).verdict != "clean"


@pytest.mark.parametrize("factor", [7.31, 1.1, -1.0, 999.0])
def test_rule_22_factor_that_is_no_unit_is_rejected(tmp_path: Path, factor: float) -> None:
    rows = [r | {"length_mm": r["length_mm"] * factor} for r in ROWS]
    output = {"plan.csv": as_csv(rows)}
    found = verdict(tmp_path, LAYOUTS["csv"], output, factors={"length_mm": factor})
    assert found.verdict == "rejected"


def test_rule_22_factor_on_some_rows_only_is_rejected(tmp_path: Path) -> None:
    rows = changed(2, length_mm=ROWS[2]["length_mm"] * 1000)
    output = {"plan.csv": as_csv(rows)}
    found = verdict(tmp_path, LAYOUTS["csv"], output, factors={"length_mm": 1000.0})
    assert found.verdict == "rejected"


def test_rule_22_absent_row_must_be_zero_and_allowed(tmp_path: Path) -> None:
    fields = [{**f, "absence_means_zero": True} for f in FIELDS[:4:3]]
    rows = [{"job_id": r["job_id"], "length_mm": r["length_mm"]} for r in ROWS]
    for added, fields_ in ((5, fields), (0, FIELDS[:4:3])):
        found = verdict(
            tmp_path,
            {"f.csv": as_csv(rows)},
            {"plan.csv": as_csv([*rows, {"job_id": "J-100", "length_mm": added}])},
            schema_=schema(fields=fields_),
            rows={"plan.csv": (8, 9)},
        )
        assert found.verdict == "rejected"


def named(path: str, digest: str = "0" * 64) -> ExtractionReport:
    refs = (SourceRef(path=path, sha256=digest),)
    return ExtractionReport(status="success", sources={"plan.csv": refs})


INPUT = as_csv(ROWS)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("data/plan.csv", "input data"),
        ("./data/plan.csv", "input data"),
        ("/workspace/data/plan.csv", "input data"),
        ("/case/data/plan.csv", "outside"),
        ("../plan.csv", "outside"),
        ("x/../data/plan.csv", "outside"),
        ("/etc/passwd", "outside"),
        ("link.csv", "is a link"),
        ("door/plan.csv", "is a link"),
        ("no.csv", "does not exist"),
        ("folder", "plain file"),
        ("pipe", "plain file"),
        ("", "outside"),
        ("a\0b", "outside"),
    ],
)
def test_rule_22_source_must_be_the_agents_file(tmp_path: Path, path: str, why: str) -> None:
    workspace = tmp_path / "workspace"
    write(workspace, {"data/plan.csv": INPUT, "folder/x": b""})
    (tmp_path / "plan.csv").write_bytes(INPUT)
    (workspace / "link.csv").symlink_to(tmp_path / "plan.csv")
    (workspace / "door").symlink_to(workspace / "data")
    os.mkfifo(workspace / "pipe")
    found = verdict(tmp_path, {}, {"plan.csv": INPUT}, report=named(path))
    assert found.verdict == "rejected"
    assert why in found.findings[0]


def test_rule_22_source_must_have_the_named_hash(tmp_path: Path) -> None:
    found = verdict(tmp_path, {"f.csv": INPUT}, {"plan.csv": INPUT}, report=named("f.csv"))
    assert found.verdict == "rejected"
    assert "SHA-256" in found.findings[0]


def test_rule_22_file_without_source_is_rejected(tmp_path: Path) -> None:
    report = reported({"f.csv": INPUT}, {"plan.csv": ["f.csv"]})
    output = {"plan.csv": INPUT, "extra.csv": b"x\n1\n"}
    found = verdict(tmp_path, {"f.csv": INPUT}, output, report=report)
    assert found.verdict == "rejected"
    assert found.findings == ("extra.csv: it names no source",)


@pytest.mark.parametrize(
    "code",
    [b"import helper\nprint(2)\n", b"import helper\nprint(1)", b"import helper\r\nprint(1)\r\n"],
)
def test_rule_20_edited_code_is_rejected(tmp_path: Path, code: bytes) -> None:
    source = {"solve.py": b"import helper\nprint(1)\n"}
    target = schema(name="solve.py", format_="text", fields=[])
    found = verdict(tmp_path, source, {"solve.py": code}, schema_=target)
    assert found.verdict == "rejected"


@pytest.mark.parametrize("text", [b"all is bad\n", b"all is well and more\n"])
def test_rule_22_text_with_new_words_is_rejected(tmp_path: Path, text: bytes) -> None:
    target = schema(name="letter.txt", format_="text", fields=[])
    source = {"answer.txt": b"Dear all\n\nall is well\n"}
    assert verdict(tmp_path, source, {"letter.txt": text}, schema_=target).verdict == "rejected"
    honest = verdict(tmp_path, source, {"letter.txt": b"all  is well"}, schema_=target)
    assert honest.verdict == "clean"


def test_rule_20_less_precise_artifact_cannot_be_told_from_the_files(tmp_path: Path) -> None:
    coarse = [r | {"length_mm": round(r["length_mm"])} for r in ROWS]
    source = {"exact.csv": as_csv(ROWS), "coarse.csv": as_csv(coarse)}
    assert verdict(tmp_path, source, {"plan.csv": as_csv(coarse)}).verdict == "clean"


def deep(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "one line break": b"\n",
    "zeros": bytes(100_000),
    "random": bytes(range(256)) * 300,
    "deep JSON": deep(100_000),
    "deep objects": b'{"a":' * 50_000,
    "NaN": b'[{"order_no": NaN, "length_mm": Infinity}]',
    "huge numbers": b'[{"order_no": ' + b"9" * 10_000 + b', "length_mm": 1e99999}]',
    "wide": b",".join(b"c%d" % n for n in range(20_000)) + b"\n1\n",
    "long cell": b"order_no,length_mm\n" + b"x" * 3_000_000 + b",1\n",
    "open quote": b'order_no,length_mm\n"J-1,5\n' * 2_000,
    "many nested lists": json.dumps([{"a": [{"b": [1] * 30}] * 30}] * 30).encode(),
    "lone surrogate": b'[{"order_no": "\\ud800", "length_mm": "\\udfff"}]',
    "repeated columns": b"length_mm,length_mm,length_mm\n1,2,3\n",
    "header only": b"order_no,length_mm\n",
    "control characters": b"order_no,\x1b[31mlength_mm\n\x07,1\n",
}


@pytest.mark.parametrize("suffix", ["csv", "json", "jsonl", "xlsx", "parquet", "txt", "bin"])
@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_source_never_crashes_and_is_never_clean(
    tmp_path: Path, content: bytes, suffix: str
) -> None:
    found = verdict(tmp_path, {f"f.{suffix}": content}, {"plan.csv": as_csv(ROWS)})
    assert found.verdict in ("rejected", "unchecked")
    assert found.findings
    assert "checker failed" not in str(found.findings)


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_output_never_crashes(tmp_path: Path, content: bytes) -> None:
    found = verdict(tmp_path, LAYOUTS["csv"], {"plan.csv": content})
    assert found.verdict in ("rejected", "unchecked")
    assert "checker failed" not in str(found.findings)


def test_spreadsheet_with_entities_is_not_expanded() -> None:
    import io
    import zipfile

    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as book:
        book.writestr(
            "xl/worksheets/sheet1.xml",
            '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><worksheet>&b;</worksheet>',
        )
    with pytest.raises(Unreadable, match="entities"):
        tables_of(target.getvalue(), "f.xlsx")


async def checked(
    sandbox: LocalRunOnce, tmp_path: Path, rows: list[Row], source: Mapping[str, bytes]
) -> Any:
    output = {"plan.csv": as_csv(rows), "_result.json": b"{}"}
    write(tmp_path / "workspace", source)
    write(tmp_path / "output", output)
    report = reported(source, {"plan.csv": list(source)})
    return await check(sandbox, tmp_path / "workspace", tmp_path / "output", schema(), report)


async def test_checker_runs_as_an_isolated_program(tmp_path: Path, sandbox: LocalRunOnce) -> None:
    assert (await checked(sandbox, tmp_path, ROWS, LAYOUTS["csv"])).verdict == "clean"
    broken = await checked(sandbox, tmp_path, changed(0, length_mm=1), LAYOUTS["csv"])
    assert broken.verdict == "rejected"
    assert all(read_only for _, _, read_only in sandbox.seen[0].mounts)


async def test_checker_output_is_capped(tmp_path: Path, sandbox: LocalRunOnce) -> None:
    output = {f"x{n}.csv": b"a\n1\n" for n in range(300)}
    write(tmp_path / "workspace", {})
    write(tmp_path / "output", output)
    report = ExtractionReport(status="success")
    found = await check(sandbox, tmp_path / "workspace", tmp_path / "output", schema(), report)
    assert found.verdict == "rejected"
    assert len(found.findings) == 40


async def test_sandbox_that_does_not_start_is_a_fault_of_ours(tmp_path: Path) -> None:
    with pytest.raises(EvaluatorFault) as caught:
        await checked(LocalRunOnce(broken=True), tmp_path, ROWS, LAYOUTS["csv"])
    assert caught.value.kind is FailureKind.GRADER_SANDBOX


@pytest.mark.parametrize(
    "completed",
    [
        ended_with(None, reason="timeout"),
        ended_with(None, reason="memory"),
        ended_with(0, b"x" * (1 << 20), reason="output"),
        ended_with(1, b"", b"Traceback\nValueError: x"),
        ended_with(0, b""),
        ended_with(0, b"clean\n"),
        ended_with(0, b'{"verdict": "clean", "findings": []}\n' * 2),
        ended_with(0, b'{"verdict": "fine", "findings": []}\n'),
        ended_with(0, b'{"verdict": "clean", "findings": [1]}\n'),
    ],
    ids=range(9),
)
def test_checker_that_says_nothing_leaves_the_route_unchecked(completed: Completed) -> None:
    found = verdict_of(completed)
    assert found.verdict == "unchecked"
    assert found.findings
