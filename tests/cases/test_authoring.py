from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fde_ray.cases.authoring.mutants import (
    Mutant,
    files_under,
    mutant_text,
    mutated,
    read_mutant,
)
from fde_ray.cases.authoring.probe_runs import evaluate_files
from fde_ray.cases.authoring.randomness import Draws
from fde_ray.cases.authoring.writers import csv_text, json_text, manifest_text, number_text

FILES = {"t.csv": b"id,x\na,1\nb,2\nc,3\n"}


def test_draws_never_change() -> None:
    draws = Draws(7)
    assert [draws.whole(1, 6) for _ in range(8)] == [2, 1, 4, 1, 4, 3, 1, 4]
    assert draws.shuffled("abcdef") == ["b", "e", "d", "f", "c", "a"]
    assert [draws.pick("xyz"), draws.weighted("xyz", (0, 1, 0))] == ["z", "y"]
    assert round(draws.normal(10, 2), 6) == 9.010254
    assert 5 <= draws.between(5, 6) < 6


def test_a_coin_that_always_or_never_falls() -> None:
    draws = Draws(1)
    assert all(draws.chance(1.0) for _ in range(50))
    assert not any(draws.chance(0.0) for _ in range(50))


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [(2.0, None, "2"), (0.1, None, "0.1"), (1 / 3, 4, "0.3333"), (-0.0, 2, "0"), (1e-7, 3, "0")],
)
def test_a_number_has_one_spelling(value: float, digits: int | None, text: str) -> None:
    assert number_text(value, digits) == text


def test_tables_and_documents_end_with_one_line_feed() -> None:
    assert csv_text(["a", "b"], [{"b": 2.0, "a": "x, y", "c": 1}]) == 'a,b\n"x, y",2\n'
    assert json_text({"b": "é", "a": 1}) == '{\n  "b": "é",\n  "a": 1\n}\n'
    with pytest.raises(ValueError, match="JSON"):
        json_text(float("nan"))


def test_a_manifest_lists_files_by_name_and_leaves_itself_out(tmp_path: Path) -> None:
    for name in ("b.txt", "a/c.txt", "MANIFEST.sha256", "__pycache__/x.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    lines = manifest_text(tmp_path).splitlines()
    assert [line[66:] for line in lines] == ["a/c.txt", "b.txt"]


@pytest.mark.parametrize(
    ("edit", "result"),
    [
        ({"op": "set", "row": 1, "field": "x", "value": 9}, "id,x\na,1\nb,9\nc,3\n"),
        ({"op": "column", "field": "x", "values": [7, 8, 9]}, "id,x\na,7\nb,8\nc,9\n"),
        ({"op": "swap", "rows": [0, 2]}, "id,x\nc,3\nb,2\na,1\n"),
        ({"op": "move", "row": 0, "to": 2}, "id,x\nb,2\nc,3\na,1\n"),
        ({"op": "drop", "row": 1}, "id,x\na,1\nc,3\n"),
        ({"op": "append", "values": {"id": "d", "x": 4}}, "id,x\na,1\nb,2\nc,3\nd,4\n"),
        ({"op": "drop_column", "field": "id"}, "x\n1\n2\n3\n"),
        ({"op": "text", "text": "free"}, "free"),
        ({"op": "replace", "old": "b,2", "new": "b,5"}, "id,x\na,1\nb,5\nc,3\n"),
    ],
)
def test_each_edit_does_what_it_says(edit: Mapping[str, Any], result: str) -> None:
    assert mutated(FILES, [{"file": "t.csv", **edit}]) == {"t.csv": result.encode()}


def test_a_file_can_be_taken_away() -> None:
    assert mutated(FILES, [{"op": "remove", "file": "t.csv"}]) == {}


@pytest.mark.parametrize(
    "edit",
    [
        {"op": "turn", "file": "t.csv"},
        {"op": "replace", "file": "t.csv", "old": ",", "new": ";"},
        {"op": "replace", "file": "t.csv", "old": "z", "new": "y"},
        {"op": "set", "file": "u.csv", "row": 0, "field": "x", "value": 1},
        {"op": "column", "file": "t.csv", "field": "x", "values": [1]},
    ],
)
def test_an_edit_that_does_not_fit_is_an_error(edit: Mapping[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError)):
        mutated(FILES, [edit])


def test_a_mutant_reads_as_it_was_written() -> None:
    mutant = Mutant("m", "rule", "outside", ("rule",), ({"op": "drop", "file": "t.csv", "row": 0},))
    assert read_mutant(mutant_text(mutant), "m") == mutant


NO_MUTANTS = (
    "",
    "[]",
    "{}",
    '{"code": 1, "side": "inside", "codes": [], "edits": []}',
    '{"code": "a", "side": "beside", "codes": [], "edits": []}',
    '{"code": "a", "side": "inside", "codes": "a", "edits": []}',
    '{"code": "a", "side": "inside", "codes": [], "edits": [1]}',
)


@pytest.mark.parametrize("text", NO_MUTANTS)
def test_a_text_that_is_no_mutant_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_mutant(text, "m")


def test_links_are_no_part_of_a_deliverable(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="is a link"):
        files_under(tmp_path)


@pytest.mark.parametrize(
    ("program", "status", "has_result"),
    [
        ("import time; time.sleep(30)", None, False),
        ("raise RuntimeError('no')", 1, False),
        ("print('noise'); print('{}')", 0, False),
        ("print('[1]')", 0, False),
        ("print('x' * (2 << 20))", 0, False),
        ('print(\'{"valid": true, "score": 0.5, "violations": []}\')', 0, True),
    ],
)
def test_a_misbehaving_evaluator_gives_no_result(
    tmp_path: Path, program: str, status: int | None, has_result: bool
) -> None:
    (tmp_path / "sealed").mkdir()
    (tmp_path / "sealed" / "evaluator.py").write_text(program, encoding="utf-8")
    run = evaluate_files(tmp_path, {"a.txt": b"x"}, timeout_s=5 if status == 0 else 2)
    assert (run.status, run.result is not None) == (status, has_result)
    assert run.valid is has_result
    assert run.score == (0.5 if has_result else 0.0)


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/../../x"])
def test_files_stay_inside_their_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="leaves the folder"):
        evaluate_files(tmp_path, {name: b"x"})
