import json
import os
from pathlib import Path
from typing import Any

import pytest

from fde_ray.cases.authoring import vendoring
from fde_ray.cases.authoring.strict_reader import (
    MAX_COLUMNS,
    MAX_NESTING,
    Rejected,
    Structural,
    as_integer,
    as_key,
    as_number,
    quality_of,
    read_json,
    read_table,
    run_evaluator,
    tree_hash,
    without_repeats,
)

CAP = 1 << 16


def table(folder: Path, content: bytes, **limits: int) -> list[dict[str, str]]:
    (folder / "t.csv").write_bytes(content)
    return read_table(
        str(folder), "t.csv", ["a", "b"], max_bytes=CAP, max_rows=limits.get("max_rows", 9)
    )


def document(folder: Path, content: bytes) -> Any:
    (folder / "t.json").write_bytes(content)
    return read_json(str(folder), "t.json", max_bytes=CAP)


def test_a_mark_and_carriage_returns_are_fine(tmp_path: Path) -> None:
    rows = table(tmp_path, b"\xef\xbb\xbfa,b,c\r\n1, 2 ,x\r\n\r\n3,4,\r\n")
    assert rows == [{"a": "1", "b": "2", "c": "x"}, {"a": "3", "b": "4", "c": ""}]


@pytest.mark.parametrize(
    ("content", "code"),
    {
        "not UTF-8": (b"a,b\n\xff,1\n", "format.encoding"),
        "UTF-16": ("a,b\n1,2\n".encode("utf-16"), "format.encoding"),
        "a null": (b"a,b\n1,\x002\n", "format.encoding"),
        "too few cells": (b"a,b\n1\n", "format.csv"),
        "too many cells": (b"a,b\n1,2,3\n", "format.csv"),
        "open quote": (b'a,b\n"1,2\n', "format.csv"),
        "column twice": (b"a,b,b\n1,2,3\n", "format.duplicate"),
        "many columns": (b"a,b" + b",c" * MAX_COLUMNS + b"\n", "format.csv"),
        "many rows": (b"a,b\n" + b"1,2\n" * 10, "format.rows"),
        "too big": (b"a,b\n" + b"1,2\n" * CAP, "format.size"),
    }.values(),
)
def test_a_bad_table_is_rejected_with_its_code(tmp_path: Path, content: bytes, code: str) -> None:
    with pytest.raises(Rejected) as caught:
        table(tmp_path, content)
    assert caught.value.code == code


@pytest.mark.parametrize("content", [b"", b"\n\n", b"a,c\n1,2\n", b"x\n"])
def test_a_missing_column_is_structural(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(Structural):
        table(tmp_path, content)


def test_a_missing_file_is_structural(tmp_path: Path) -> None:
    with pytest.raises(Structural):
        read_json(str(tmp_path), "t.json", max_bytes=CAP)


@pytest.mark.parametrize("name", ["", ".", "..", "../t.csv", "/etc/passwd", "a/b", "a\0b"])
def test_a_path_that_leaves_the_folder_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(Rejected) as caught:
        read_json(str(tmp_path), name, max_bytes=CAP)
    assert caught.value.code == "format.path"


def test_links_folders_and_pipes_are_rejected(tmp_path: Path) -> None:
    target = tmp_path / "t.json"
    (tmp_path / "real.json").write_text("{}", encoding="utf-8")
    for pointed in (str(tmp_path / "real.json"), "/dev/zero"):
        target.symlink_to(pointed)
        with pytest.raises(Rejected):
            read_json(str(tmp_path), "t.json", max_bytes=CAP)
        target.unlink()
    os.mkfifo(target)
    with pytest.raises(Rejected):
        read_json(str(tmp_path), "t.json", max_bytes=CAP)
    target.unlink()
    target.mkdir()
    with pytest.raises(Rejected):
        read_json(str(tmp_path), "t.json", max_bytes=CAP)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b'{"a": 1, "a": 2}', "format.duplicate"),
        (b"[NaN]", "format.number"),
        (b"[-Infinity]", "format.number"),
        (b"[1e400]", "format.number"),
        (b"[1e13]", "format.number"),
        (b"[" + b"9" * 5000 + b"]", "format.number"),
        (b"[" * (MAX_NESTING + 1) + b"]" * (MAX_NESTING + 1), "format.nesting"),
        (b"[" * 60_000, "format.nesting"),
        (b"{", "format.json"),
        (b"", "format.json"),
        (b"\xff", "format.encoding"),
    ],
)
def test_a_bad_document_is_rejected_with_its_code(
    tmp_path: Path, content: bytes, code: str
) -> None:
    with pytest.raises(Rejected) as caught:
        document(tmp_path, content)
    assert caught.value.code == code


def test_brackets_in_texts_are_no_nesting(tmp_path: Path) -> None:
    text = ["[" * 40 + '\\"' + "{" * 40]
    assert document(tmp_path, json.dumps(text).encode()) == text


@pytest.mark.parametrize("value", ["12", "12.0", " 1.2e1 ", 12, 12.0, "+12"])
def test_equal_spellings_of_a_number_are_equal(value: object) -> None:
    assert as_integer(value, "x") == 12


WORDS = ["", " ", "nan", "inf", "-Infinity", "1e999", "1e13", "1_000", "0x10", "1,5", "one", "١٢"]
OBJECTS = [True, False, None, [1], {"a": 1}, float("nan"), float("inf"), 1e13, "9" * 5000]


@pytest.mark.parametrize("value", [*WORDS, *OBJECTS])
def test_what_is_no_number_is_rejected(value: object) -> None:
    with pytest.raises(Rejected):
        as_number(value, "x")


@pytest.mark.parametrize("value", ["1.5", 0.5, "11", "-1"])
def test_a_fraction_or_a_number_out_of_range_is_rejected(value: object) -> None:
    with pytest.raises(Rejected):
        as_integer(value, "x", 0, 10)


@pytest.mark.parametrize("value", ["", "  ", 7, None, "x" * 201])
def test_what_is_no_key_is_rejected(value: object) -> None:
    with pytest.raises(Rejected):
        as_key(value, "x")


def test_repeated_keys_are_rejected() -> None:
    without_repeats(["a", "b"], "twice")
    with pytest.raises(Rejected, match="twice"):
        without_repeats(["a", "b", "a"], "twice")


def test_quality_is_one_at_the_reference_and_never_clipped() -> None:
    assert quality_of(7.0, 7.0, "min") == 1.0
    assert quality_of(0.0, 7.0, "min") == 7e9
    assert quality_of(14.0, 7.0, "max") == 2.0
    assert quality_of(-3.0, 7.0, "max") == 0.0


def test_a_tree_hash_depends_on_names_and_contents_but_not_on_order() -> None:
    first = tree_hash([("a", b"1"), ("b", b"2")])
    assert first == tree_hash([("b", b"2"), ("a", b"1")])
    assert first != tree_hash([("a", b"2"), ("b", b"1")])


def judged(sealed: Path, outcome: Any, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any, str]:
    """Run an evaluator whose judge does `outcome`; return status, printed record and stderr."""
    for name in ("params.json", "submission_schema.json"):
        (sealed / name).write_text("{}", encoding="utf-8")
    (sealed / "reference.json").write_text('{"raw": 4}', encoding="utf-8")
    (sealed / "evaluator.py").write_text("", encoding="utf-8")
    status = run_evaluator(
        ["--data-dir", str(sealed), "--submission-dir", str(sealed)],
        case="000",
        version="1.0.0",
        direction="min",
        evaluator=str(sealed / "evaluator.py"),
        load=lambda data, own: None,
        judge=outcome,
    )
    printed = capsys.readouterr()
    return status, json.loads(printed.out) if printed.out else None, printed.err


def test_a_valid_submission_is_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, record, _ = judged(tmp_path, lambda *_: (5, {"x": 5}), capsys)
    assert (status, record["valid"], record["score"], record["stage"]) == (0, True, 0.8, "quality")


def test_a_broken_rule_scores_zero_but_keeps_raw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def judge(_: object, __: object, found: Any) -> tuple[float, dict[str, float]]:
        found.add("rule", "here")
        found.add("rule", "there")
        return 5, {}

    status, record, _ = judged(tmp_path, judge, capsys)
    assert (status, record["score"], record["quality"]) == (0, 0.0, 0.8)
    assert record["violations"] == [{"code": "rule", "count": 2, "first": "here"}]
    assert record["stage"] == "constraint"


@pytest.mark.parametrize(("error", "status"), [(Structural("c"), 3), (Rejected("c"), 0)])
def test_unreadable_submissions_end_as_structure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception, status: int
) -> None:
    def judge(*_: object) -> Any:
        raise error

    got, record, _ = judged(tmp_path, judge, capsys)
    assert (got, record["stage"], record["score"]) == (status, "structure", 0.0)


@pytest.mark.parametrize("outcome", [lambda *_: 1 / 0, lambda *_: (float("nan"), {})])
def test_a_defect_of_ours_is_exit_4_without_a_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], outcome: Any
) -> None:
    status, record, error = judged(tmp_path, outcome, capsys)
    assert (status, record) == (4, None)
    assert error.count("\n") == 1


def test_the_block_stands_once_and_drift_is_seen(tmp_path: Path) -> None:
    block = vendoring.source_block()
    evaluator = tmp_path / "evaluator.py"
    evaluator.write_text(f'"""Doc."""\n\n{block}\nprint(1)\n', encoding="utf-8")
    assert vendoring.is_current(evaluator)
    assert not vendoring.revendor(evaluator)
    text = evaluator.read_text(encoding="utf-8").replace("MAX_NESTING = 20", "MAX_NESTING = 99")
    evaluator.write_text(text, encoding="utf-8")
    assert not vendoring.is_current(evaluator)
    assert vendoring.revendor(evaluator)
    assert vendoring.is_current(evaluator)
    assert evaluator.read_text(encoding="utf-8").endswith("print(1)\n")


@pytest.mark.parametrize(
    "text", ["", "x\n", vendoring.BEGIN, f"{vendoring.END}\n{vendoring.BEGIN}"]
)
def test_a_text_without_the_markers_has_no_block(text: str) -> None:
    with pytest.raises(ValueError, match="marker"):
        vendoring.block_of(text)
