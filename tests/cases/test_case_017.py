"""Case 017: hostile submissions, and a build that gives the same bytes again."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fde_ray.cases.authoring.probe_runs import Evaluation, evaluate_files, evaluate_folder
from fde_ray.cases.authoring.vendoring import is_current
from fde_ray.cases.package import load_case
from fde_ray.cases.records import Case

ROOT = Path(__file__).resolve().parents[2] / "cases" / "017_cold_rolling_sequencing"
TARGET = "schedule.csv"
BEST = (ROOT / "sealed" / "best_solution" / TARGET).read_text(encoding="utf-8")
HEADER, *ROWS = BEST.splitlines()


def scored(text: str | bytes) -> Evaluation:
    return evaluate_files(ROOT, {TARGET: text if isinstance(text, bytes) else text.encode()})


def with_row(number: int, row: str) -> str:
    return "\n".join([HEADER, *ROWS[:number], row, *ROWS[number + 1 :]]) + "\n"


def cells(number: int, **changes: str) -> str:
    row = dict(zip(HEADER.split(","), ROWS[number].split(","), strict=True)) | changes
    return ",".join(row.values())


def test_the_shared_block_is_current() -> None:
    assert is_current(ROOT / "sealed" / "evaluator.py")


HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "header only": (HEADER + "\n", "coil_set"),
    "nan": (with_row(4, cells(4, length_m="nan")), "format.number"),
    "infinite place": (with_row(4, cells(4, position="inf")), "format.number"),
    "huge place": (with_row(4, cells(4, position="1e13")), "format.number"),
    "half place": (with_row(4, cells(4, position="4.5")), "format.number"),
    "blank flag": (with_row(4, cells(4, roll_change="")), "format.number"),
    "word for a flag": (with_row(4, cells(4, roll_change="true")), "format.number"),
    "blank coil": (with_row(4, cells(4, coil_id="")), "format.key"),
    "long coil": (with_row(4, cells(4, coil_id="C" * 300)), "format.key"),
    "escaping coil": (with_row(4, cells(4, coil_id="../../x")), "coil_set"),
    "terminal escape": (with_row(4, cells(4, coil_id="\x1b[2J")), "coil_set"),
    "negative flag": (with_row(4, cells(4, roll_change="-1")), "roll_flag"),
    "place twice": (with_row(4, cells(4, position="1")), "position"),
    "row too long": (with_row(4, ROWS[4] + ",1"), "format.csv"),
    "column twice": (BEST.replace("length_m", "length_m,length_m"), "format.duplicate"),
    "not UTF-8": (BEST.encode() + b"\xff", "format.encoding"),
    "UTF-16": (BEST.encode("utf-16"), "format.encoding"),
    "binary": (bytes(range(256)) * 9, "format.encoding"),
    "too many rows": (HEADER + "\n" + (ROWS[0] + "\n") * 5001, "format.rows"),
    "too big": (HEADER + "\n" + " " * (1 << 20), "format.size"),
    "open quote": (HEADER + '\n"' + "x" * 1000, "format.csv"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_table_scores_zero_with_its_code(name: str) -> None:
    text, code = HOSTILE[name]
    run = scored(text)
    assert run.status == 0, run.stderr
    assert (run.valid, run.score) == (False, 0.0)
    assert code in run.codes
    assert run.stdout.count(b"\n") == 1
    assert run.stdout.isascii()


@pytest.mark.parametrize(
    "files",
    [{}, {"plan.csv": b"x"}, {TARGET: b""}, {TARGET: BEST.replace("length_m", "metres").encode()}],
)
def test_a_missing_file_or_column_is_structural(files: dict[str, bytes]) -> None:
    run = evaluate_files(ROOT, files)
    assert run.status == 3
    assert run.result is not None
    assert (run.result["stage"], run.result["score"]) == ("structure", 0.0)


def test_links_and_folders_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / TARGET).symlink_to(ROOT / "sealed" / "best_solution" / TARGET)
    assert evaluate_folder(ROOT, tmp_path).codes == ("format.link",)
    (tmp_path / TARGET).unlink()
    (tmp_path / TARGET).mkdir()
    assert evaluate_folder(ROOT, tmp_path).codes == ("format.file",)


def test_a_planted_module_is_never_imported(tmp_path: Path) -> None:
    for name in ("json.py", "csv.py", "evaluator.py", "sitecustomize.py"):
        (tmp_path / name).write_text("raise SystemExit(7)", encoding="utf-8")
    (tmp_path / TARGET).write_text(BEST, encoding="utf-8")
    assert evaluate_folder(ROOT, tmp_path, cwd=tmp_path).score == 1.0


@pytest.mark.parametrize("name", ["params.json", "reference.json"])
def test_a_spoiled_package_is_our_fault(tmp_path: Path, name: str) -> None:
    sealed = tmp_path / "sealed"
    shutil.copytree(ROOT / "sealed", sealed, ignore=shutil.ignore_patterns("probes", "mutants"))
    shutil.copytree(ROOT / "data", tmp_path / "data")
    (sealed / name).write_text("{", encoding="utf-8")
    run = evaluate_folder(tmp_path, sealed / "best_solution")
    assert (run.status, run.result) == (4, None)


def test_the_sealed_folder_may_be_given(rolling: Case, tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", str(ROOT / "sealed" / "evaluator.py")]
    command += ["--data-dir", str(ROOT / "data"), "--sealed-dir", str(ROOT / "sealed")]
    command += ["--submission-dir", str(ROOT / "sealed" / "best_solution")]
    done = subprocess.run(command, capture_output=True, check=True, cwd=tmp_path)
    record = json.loads(done.stdout)
    assert (record["score"], record["scoring_hash"]) == (1.0, rolling.scoring_hash)


@pytest.mark.slow
def test_the_build_gives_the_same_bytes_again(tmp_path: Path) -> None:
    root = tmp_path / "cases" / ROOT.name
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT.parents[1] / "fde_ray", tmp_path / "fde_ray")
    for derived in ("data", "sealed/probes", "sealed/mutants", "sealed/best_solution"):
        shutil.rmtree(root / derived)
    subprocess.run(
        [sys.executable, str(root / "authoring" / "build.py")],
        check=True,
        capture_output=True,
        cwd=tmp_path,
        env={"LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    manifest = "MANIFEST.sha256"
    assert (root / manifest).read_bytes() == (ROOT / manifest).read_bytes()
    assert load_case(root).visible_hash == load_case(ROOT).visible_hash
