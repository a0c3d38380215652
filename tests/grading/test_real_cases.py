"""The shipped cases' foreign deliverables, mapped by aliases alone, pass checker and scorer."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from fde_ray.cases.package import load_case
from fde_ray.cases.probes import load_probe
from fde_ray.cases.records import Case, SchemaFile
from fde_ray.grading.extraction import Extraction
from fde_ray.grading.scoring import scoring_case
from fde_ray.llm import offline_mapping
from tests.grading.doubles import LocalRunOnce
from tests.grading.extracts import as_csv, write

CASES = Path(__file__).resolve().parents[2] / "cases"
WHOLE = sorted(path.parent for path in CASES.glob("*/MANIFEST.sha256"))
FOREIGN = ("greedy_full", "oracle_50")
SUMMARY = "_agent_summary.md"

pytestmark = pytest.mark.parametrize("folder", WHOLE, ids=lambda path: path.name[:3])


def extracted(case: Case, name: str, tmp_path: Path) -> SchemaFile:
    """Play an honest extractor on a probe; return the one file that it wrote."""
    probe = load_probe(case, name)
    write(tmp_path / "seen", {**probe.files, SUMMARY: probe.summary.encode()})
    write(tmp_path / "workspace", probe.files)
    offline_mapping.main(
        {
            "schema": case.submission_schema.jsonable(),
            "workspace": str(tmp_path / "seen"),
            "data_dir": str(case.root / "data"),
            "output_dir": str(tmp_path / "output"),
        }
    )
    (file,) = case.submission_schema.files
    return file


def extraction(case: Case, tmp_path: Path, sandbox: LocalRunOnce) -> Extraction:
    place = scoring_case(case, sealed_dir=case.root / "sealed", data_dir=case.root / "data")
    return Extraction(sandbox, place, case.submission_schema, tmp_path / "workspace")


@pytest.mark.parametrize("name", [*FOREIGN, "oracle_75", "reference"])
async def test_rule_22_extracted_probe_keeps_its_score(
    tmp_path: Path, sandbox: LocalRunOnce, folder: Path, name: str
) -> None:
    case = load_case(folder)
    probe = load_probe(case, name)
    assert (probe.layout == "foreign") == (name in FOREIGN)
    extracted(case, name, tmp_path)
    route = await extraction(case, tmp_path, sandbox).route(0, "offline/x", tmp_path / "output")
    assert route.provenance is not None
    assert route.provenance.verdict == "clean", route.provenance.findings
    assert route.vote == float(probe.expect.score), (route.failure, route.detail)


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("attack", ["swap", "drop", "double", "nudge"])
async def test_rule_20_tampered_extract_casts_no_vote(
    tmp_path: Path, sandbox: LocalRunOnce, folder: Path, name: str, attack: str
) -> None:
    case = load_case(folder)
    file = extracted(case, name, tmp_path)
    path = tmp_path / "output" / file.name
    path.write_bytes(as_csv(tampered(file, path.read_text(), attack)))
    route = await extraction(case, tmp_path, sandbox).route(0, "offline/x", tmp_path / "output")
    assert route.provenance is not None
    assert route.provenance.verdict == "rejected"
    assert route.vote is None


def tampered(file: SchemaFile, text: str, attack: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = list(csv.DictReader(text.splitlines()))
    decision = next(field.name for field in file.fields if field.role == "decision")
    one, other = rows[0], next(row for row in rows if row[decision] != rows[0][decision])
    if attack == "swap":
        one[decision], other[decision] = other[decision], one[decision]
    elif attack == "drop":
        rows.pop()
    elif attack == "double":
        rows.append(dict(one))
    else:
        one[decision] = float(one[decision]) * 1.001
    return rows
