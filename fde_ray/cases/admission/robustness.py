"""Rules about an evaluator's steadiness: A17 and A19."""

import csv
import io
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fde_ray.cases.admission.bench import Bench, RuleResult, verdict
from fde_ray.cases.authoring.probe_runs import evaluate_folder, write_files
from fde_ray.cases.authoring.program_runs import answered_files
from fde_ray.cases.authoring.randomness import Draws
from fde_ray.cases.authoring.strict_reader import tree_hash
from fde_ray.cases.authoring.writers import csv_text
from fde_ray.cases.records import SchemaFile

RUNS = 3


def metamorphic(bench: Bench) -> RuleResult:
    """A17: the same deliverable, written differently, gets the same result.

    Not decided for programs: nothing tells in what other ways their answers may be written.
    """
    if bench.case.meta.program is not None:
        return RuleResult(rule="A17", ok=None, detail="not decided here: answers have no schema")
    base = bench.run(bench.best).result or {}
    faults = []
    for target in bench.case.submission_schema.files:
        if target.format != "csv" or target.name not in bench.best:
            continue
        for name, rewritten in _REWRITINGS.items():
            content = rewritten(target, bench.best[target.name])
            run = bench.run({**bench.best, target.name: content})
            result = run.result or {}
            if any(result.get(key) != base.get(key) for key in ("valid", "raw", "score")):
                faults.append(f"{target.name} with {name}: {run.codes or run.stderr}")
    return verdict("A17", faults, f"{len(_REWRITINGS)} ways of writing it give one result", {})


def _table(content: bytes) -> tuple[list[str], list[dict[str, str]]]:
    reader = csv.DictReader(io.StringIO(content.decode("utf-8"), newline=""))
    rows = list(reader)
    return list(reader.fieldnames or ()), rows


def _shuffled_rows(target: SchemaFile, content: bytes) -> bytes:
    columns, rows = _table(content)
    return csv_text(columns, rows if target.sorted else Draws(5).shuffled(rows)).encode()


def _turned_columns(_: SchemaFile, content: bytes) -> bytes:
    columns, rows = _table(content)
    return csv_text(columns[::-1], rows).encode()


def _extra_column(_: SchemaFile, content: bytes) -> bytes:
    columns, rows = _table(content)
    return csv_text(
        [*columns, "remark"], [{**row, "remark": "fine, thanks"} for row in rows]
    ).encode()


def _with_mark(_: SchemaFile, content: bytes) -> bytes:
    return b"\xef\xbb\xbf" + content


def _carriage_returns(_: SchemaFile, content: bytes) -> bytes:
    return content.replace(b"\n", b"\r\n")


def _decimal_zeros(target: SchemaFile, content: bytes) -> bytes:
    columns, rows = _table(content)
    numeric = [field.name for field in target.fields if field.type in ("integer", "number")]
    for row in rows:
        for name in numeric:
            if row.get(name, "").lstrip("-").isdigit():
                row[name] += ".0"
    return csv_text(columns, rows).encode()


_REWRITINGS: Mapping[str, Callable[[SchemaFile, bytes], bytes]] = {
    "rows shuffled": _shuffled_rows,
    "columns turned": _turned_columns,
    "a further column": _extra_column,
    "a byte order mark": _with_mark,
    "CRLF": _carriage_returns,
    "12.0 for 12": _decimal_zeros,
}


def deterministic(bench: Bench) -> RuleResult:
    """A19: runs with other hash seeds and folders give the same bytes, well inside the limit.

    A program is run anew each time, and must answer the same.
    """
    outputs, slowest = set(), 0.0
    for _ in range(RUNS):
        files = (
            bench.best
            if bench.case.meta.program is None
            else answered_files(bench.case, bench.best)
        )
        with tempfile.TemporaryDirectory(prefix="fde-ray-again-") as scratch:
            folder = Path(scratch)
            write_files(folder, files)
            started = time.perf_counter()
            output = evaluate_folder(bench.case.root, folder, cwd=folder).stdout
            slowest = max(slowest, time.perf_counter() - started)
        outputs.add((tree_hash(files.items()), output))
    faults = [] if len(outputs) == 1 else [f"{len(outputs)} different outputs in {RUNS} runs"]
    if slowest > bench.case.limits.eval_s:
        faults.append(f"took {slowest:.1f} s of {bench.case.limits.eval_s} s")
    return verdict("A19", faults, f"{RUNS} runs, same bytes", {"slowest_s": slowest})
