"""Branch coverage of an evaluator over the reference, all probes and all mutants."""

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from fde_ray.cases.admission.bench import Bench
from fde_ray.cases.authoring.probe_runs import write_files
from fde_ray.cases.authoring.vendoring import BEGIN, END

_DRIVER = """
import contextlib, io, runpy, sys
evaluator, data, *folders = sys.argv[1:]
for folder in folders:
    sys.argv = [evaluator, "--data-dir", data, "--submission-dir", folder]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        runpy.run_path(evaluator, run_name="__main__")
"""


def branch_coverage(bench: Bench) -> tuple[float | None, str]:
    """Return the covered share of branches outside the shared block, or None and the reason."""
    if importlib.util.find_spec("coverage") is None:
        return None, "mutants pass; branch coverage not measured (package coverage is missing)"
    read = [bench.judged_files(bench.best)]
    read += [bench.judged_files(bench.probe_files(name)) for name in bench.probes]
    read += [bench.mutant_files(mutant) for mutant in bench.mutants]
    evaluator = bench.case.root / "sealed" / "evaluator.py"
    with tempfile.TemporaryDirectory(prefix="fde-ray-cover-") as scratch:
        root = Path(scratch)
        folders = []
        for number, files in enumerate(read):
            folder = root / str(number)
            folder.mkdir()
            write_files(folder, files)
            folders.append(str(folder))
        (root / "driver.py").write_text(_DRIVER, encoding="utf-8")
        report = root / "report.json"
        head = [sys.executable, "-m", "coverage"]
        data = f"--data-file={root / 'data'}"
        subprocess.run(
            [*head, "run", "--branch", data, f"--include={evaluator}", str(root / "driver.py"),
             str(evaluator), str(bench.case.root / "data"), *folders],
            check=True, capture_output=True, timeout=600, cwd=root,
        )  # fmt: skip
        subprocess.run(
            [*head, "json", data, "-o", str(report)],
            check=True, capture_output=True, timeout=60, cwd=root,
        )  # fmt: skip
        document = json.loads(report.read_text(encoding="utf-8"))
    (facts,) = document["files"].values()
    return _own_share(evaluator.read_text(encoding="utf-8").splitlines(), facts), ""


def _own_share(lines: list[str], facts: dict[str, list[list[int]]]) -> float:
    first, last = lines.index(BEGIN) + 1, lines.index(END) + 1
    own = [
        [edge for edge in facts[kind] if not first <= abs(edge[0]) <= last]
        for kind in ("executed_branches", "missing_branches")
    ]
    total = len(own[0]) + len(own[1])
    return len(own[0]) / total if total else 1.0
