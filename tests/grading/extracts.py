"""Small foreign deliverables and what an extractor may make of them."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fde_ray.cases.records import SubmissionSchema
from fde_ray.grading.checker.program import verdict_on
from fde_ray.grading.provenance import job_document
from fde_ray.model.grading import ExtractionReport, Provenance, RowChange, SourceRef

Row = dict[str, Any]

FIELDS: list[dict[str, Any]] = [
    {"name": "job_id", "type": "string", "role": "identifier", "aliases": ["job", "order_no"]},
    {"name": "line", "type": "string", "role": "grouping_key", "aliases": ["machine"]},
    {"name": "position", "type": "integer", "role": "order", "aliases": ["seq"]},
    {
        "name": "length_mm",
        "type": "number",
        "role": "decision",
        "aliases": ["len_mm", {"name": "length_m", "factor": 1000}],
    },
    {"name": "cost", "type": "number", "role": "derived_checked", "aliases": ["price"]},
    {"name": "remark", "type": "string", "role": "informational"},
]


def schema(
    row_set: str = "decision",
    name: str = "plan.csv",
    format_: str = "csv",
    fields: Sequence[Mapping[str, Any]] = FIELDS,
) -> SubmissionSchema:
    whole = [{"unit": None, "range": None, **f} for f in fields]
    file = {"name": name, "format": format_, "row": "one row per job", "row_set": row_set}
    document = {
        "schema": "fde_ray.submission/1",
        "files": [file | {"sorted": False, "fields": whole}],
    }
    return SubmissionSchema.model_validate_json(json.dumps(document))


def plan() -> list[Row]:
    """Eight jobs on two lines, as the target wants them."""
    lengths = [1200, 850.5, 2000, 1750, 990, 1430, 610.25, 1105]
    return [
        {
            "job_id": f"J-{n:03d}",
            "line": "L1" if n < 4 else "L2",
            "position": n % 4 + 1,
            "length_mm": length,
            "cost": round(7.3 + n * 1.9, 2),
        }
        for n, length in enumerate(lengths)
    ]


def as_csv(rows: Sequence[Row], delimiter: str = ",") -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def renamed(rows: Sequence[Row], names: Mapping[str, str]) -> list[Row]:
    return [{names.get(key, key): value for key, value in row.items()} for row in rows]


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def reported(
    files: Mapping[str, bytes],
    sources: Mapping[str, Sequence[str]],
    rows: Mapping[str, tuple[int, int]] | None = None,
    factors: Mapping[str, float] | None = None,
) -> ExtractionReport:
    def ref(path: str) -> SourceRef:
        content = files.get(path.removeprefix("/workspace/"), b"")
        return SourceRef(path=path, sha256=hashlib.sha256(content).hexdigest())

    return ExtractionReport(
        status="success",
        files_normalized=tuple(sources),
        sources={name: tuple(ref(path) for path in paths) for name, paths in sources.items()},
        unit_factors=dict(factors or {}),
        rows={n: RowChange(before=b, after=a, reason="said") for n, (b, a) in (rows or {}).items()},
    )


def verdict(
    tmp_path: Path,
    source: Mapping[str, bytes],
    output: Mapping[str, bytes],
    *,
    schema_: SubmissionSchema | None = None,
    report: ExtractionReport | None = None,
    rows: Mapping[str, tuple[int, int]] | None = None,
    factors: Mapping[str, float] | None = None,
) -> Provenance:
    """Return the verdict; every output file names every source unless `report` is given."""
    write(tmp_path / "workspace", source)
    write(tmp_path / "output", output)
    report = report or reported(source, {n: list(source) for n in output}, rows, factors)
    job = job_document(schema_ or schema(), report)
    found = verdict_on(job, str(tmp_path / "workspace"), str(tmp_path / "output"))
    return Provenance.model_validate({"verdict": found.verdict, "findings": found.findings})
