"""Case folders that are broken: told in one line, and nothing is stored."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from fde_ray.cases.authoring.writers import write_manifest
from tests.e2e.hostile import copied_case, fde_ray, scripted, write_profile, write_spec


def text_change(name: str, change: Callable[[str], str]) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        path = root / name
        changed = change(path.read_text())
        assert changed != path.read_text()
        path.write_text(changed)
        write_manifest(root)

    return damage


def bytes_as(name: str, data: bytes) -> Callable[[Path], None]:
    def damage(root: Path) -> None:
        (root / name).write_bytes(data)
        write_manifest(root)

    return damage


def _linked(root: Path) -> None:
    (root / "data/passwd.csv").symlink_to("/etc/passwd")


def _folder_link(root: Path) -> None:
    shutil.rmtree(root / "data")
    (root / "data").symlink_to("/etc")


def _twice(root: Path) -> None:
    shutil.copytree(root, root.parent / "017_another")


def _escaping(root: Path) -> None:
    manifest = root / "MANIFEST.sha256"
    manifest.write_text(manifest.read_text() + f"{'0' * 64}  ../../etc/passwd\n")


def _as_folder(root: Path) -> None:
    (root / "case.toml").unlink()
    (root / "case.toml").mkdir()


def _huge(root: Path) -> None:
    with (root / "data/coils.csv").open("r+b") as file:
        file.truncate(20 << 30)


BAD_NUMBER = '"x": 1e99999, "x": NaN,'
DAMAGE: dict[str, Callable[[Path], None]] = {
    "no manifest": lambda root: (root / "MANIFEST.sha256").unlink(),
    "manifest of other bytes": lambda root: (root / "instruction.md").write_text("Other."),
    "manifest that escapes": _escaping,
    "manifest of nonsense": bytes_as("instruction.md", b"\xff\xfe\x00"),
    "file that is not listed": lambda root: (root / "data/more.csv").write_text("a\n"),
    "link in data": _linked,
    "data is a link": _folder_link,
    "pipe in data": lambda root: os.mkfifo(root / "data/pipe"),
    "huge sparse data": _huge,
    "name in any bytes": lambda root: (root / "data/\udcff\x1b[31m.csv").write_text("x"),
    "no evaluator": lambda root: (root / "sealed/evaluator.py").unlink(),
    "case.toml is a folder": _as_folder,
    "case.toml cut off": text_change("case.toml", lambda s: s[:200] + '"'),
    "case.toml with a wrong type": text_change(
        "case.toml", lambda s: s.replace("id = 17", 'id = "\\u001b[31m"')
    ),
    "case.toml with an unknown key": text_change("case.toml", lambda s: 'colour = "red"\n' + s),
    "case.toml of another folder": text_change(
        "case.toml", lambda s: s.replace("cold_rolling", "hot_rolling")
    ),
    "gt.json no JSON": bytes_as("sealed/gt.json", b"{" * 100_000),
    "gt.json empty": bytes_as("sealed/gt.json", b"{}"),
    "gt.json list": bytes_as("sealed/gt.json", b"[1, 2]"),
    "gt.json with an answer that is nowhere": text_change(
        "sealed/gt.json", lambda s: s.replace('"answer": "After', '"answer": "Before', 1)
    ),
    "reference with bad numbers": text_change(
        "sealed/reference.json", lambda s: s.replace("{", "{" + BAD_NUMBER, 1)
    ),
    "schema with bad formats": text_change(
        "sealed/submission_schema.json", lambda s: s.replace('"csv"', '"exe"', 1)
    ),
    "points of other keys": text_change("sealed/points.json", lambda s: s.replace('"', '"x', 1)),
    "a case twice": _twice,
}


@pytest.mark.parametrize("kind", list(DAMAGE))
def test_a_broken_case_folder_is_told_in_one_line_and_stores_nothing(
    tmp_path: Path, kind: str
) -> None:
    cases = tmp_path / "cases"
    DAMAGE[kind](copied_case(cases))
    profile = write_profile(tmp_path, None, cases=str(cases))
    spec = write_spec(tmp_path, "broken", scripted("reference"))
    done = fde_ray(tmp_path, "sweep", "submit", str(spec), "--profile", str(profile))
    assert done.code == 2, done.err
    assert done.out == ""
    lines = done.err.splitlines()
    assert len(lines) == 1, done.err
    assert re.match(r"fde-ray: .*017_", lines[0]), done.err
    assert all(character.isprintable() for character in lines[0])
    database = tmp_path / "runs.sqlite"
    if database.exists():
        with contextlib.closing(sqlite3.connect(database)) as store:
            assert store.execute("select count(*) from sweeps").fetchone() == (0,)
    assert not any(path.is_file() for path in (tmp_path / "objects").rglob("*"))
    assert not (tmp_path / "last-error.txt").exists()
