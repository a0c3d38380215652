"""The shipped cases' foreign deliverables, normalised by aliases alone, pass checker and scorer."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from fde_ray.cases.package import load_case
from fde_ray.cases.probes import load_probe
from fde_ray.cases.records import Case, Probe, SchemaFile
from fde_ray.grading.extraction import Extraction
from fde_ray.grading.scoring import scoring_case
from fde_ray.model.grading import RouteStatus
from tests.grading.doubles import LocalRunOnce
from tests.grading.extracts import write

CASES = Path(__file__).resolve().parents[2] / "cases"
WHOLE = sorted(path.parent for path in CASES.glob("*/MANIFEST.sha256"))
FOREIGN = ("greedy_full", "oracle_50")

Rows = list[dict[str, Any]]


def foreign_file(file: SchemaFile, probe: Probe) -> str:
    return next(name for name in (file.name, *file.aliases) if name in probe.files)


def rows_of(name: str, content: bytes) -> Rows:
    if not name.endswith(".json"):
        return list(csv.DictReader(io.StringIO(content.decode())))
    document = json.loads(content)
    if isinstance(document, dict):
        document = next(v for v in document.values() if isinstance(v, list))
    assert isinstance(document, list)
    return document


def normalised(file: SchemaFile, rows: Rows) -> tuple[Rows, dict[str, float]]:
    """Return target rows and unit factors by names and aliases alone."""
    factors: dict[str, float] = {}
    result: Rows = []
    for place, row in enumerate(rows, start=1):
        target: dict[str, Any] = {}
        for field in file.fields:
            names = {field.name: 1.0} | {alias.name: alias.factor for alias in field.renamings()}
            found = next((name for name in names if name in row), None)
            if found is None:
                target[field.name] = place
                continue
            factor = names[found]
            target[field.name] = row[found] if factor == 1 else round(float(row[found]) * factor, 9)
            if factor != 1:
                factors[field.name] = factor
        result.append(target)
    return result, factors


def report_text(file: SchemaFile, source: str, content: bytes, factors: dict[str, float]) -> bytes:
    digest = hashlib.sha256(content).hexdigest()
    document = {
        "status": "success",
        "notes": "",
        "files_found": [source],
        "files_normalized": [file.name],
        "sources": {file.name: [{"path": source, "sha256": digest}]},
        "unit_factors": factors,
        "rows": {},
    }
    return json.dumps(document).encode()


def as_csv(rows: Rows) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def prepared(tmp_path: Path, case: Case, probe: Probe) -> tuple[SchemaFile, Rows]:
    (file,) = case.submission_schema.files
    source = foreign_file(file, probe)
    rows, factors = normalised(file, rows_of(source, probe.files[source]))
    write(tmp_path / "workspace", probe.files)
    report = report_text(file, source, probe.files[source], factors)
    write(tmp_path / "output", {file.name: as_csv(rows), "_result.json": report})
    return file, rows


def extraction(case: Case, tmp_path: Path, sandbox: LocalRunOnce) -> Extraction:
    place = scoring_case(case, sealed_dir=case.root / "sealed", data_dir=case.root / "data")
    return Extraction(sandbox, place, case.submission_schema, tmp_path / "workspace")


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("folder", WHOLE, ids=lambda path: path.name[:3])
async def test_rule_22_foreign_probe_keeps_its_score(
    tmp_path: Path, sandbox: LocalRunOnce, folder: Path, name: str
) -> None:
    case = load_case(folder)
    probe = load_probe(case, name)
    assert probe.layout == "foreign"
    prepared(tmp_path, case, probe)
    route = await extraction(case, tmp_path, sandbox).route(0, "offline/x", tmp_path / "output")
    assert route.provenance is not None
    assert route.provenance.verdict == "clean", route.provenance.findings
    assert route.status is RouteStatus.SUCCESS
    assert route.vote is not None, route.detail
    assert round(route.vote, 9) == round(float(probe.expect.score), 9)


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("folder", WHOLE, ids=lambda path: path.name[:3])
@pytest.mark.parametrize("attack", ["swap", "drop", "double", "nudge"])
async def test_rule_20_tampered_foreign_probe_casts_no_vote(
    tmp_path: Path, sandbox: LocalRunOnce, folder: Path, name: str, attack: str
) -> None:
    case = load_case(folder)
    file, rows = prepared(tmp_path, case, load_probe(case, name))
    decision = next(f.name for f in file.fields if f.role == "decision")
    one = rows[0]
    other = next(row for row in rows if str(row[decision]) != str(one[decision]))
    if attack == "swap":
        one[decision], other[decision] = other[decision], one[decision]
    elif attack == "drop":
        rows.pop()
    elif attack == "double":
        rows.append(dict(rows[0]))
    else:
        one[decision] = float(one[decision]) * 1.001
    (tmp_path / "output" / file.name).write_bytes(as_csv(rows))
    route = await extraction(case, tmp_path, sandbox).route(0, "offline/x", tmp_path / "output")
    assert route.provenance is not None
    assert route.provenance.verdict == "rejected"
    assert route.vote is None
