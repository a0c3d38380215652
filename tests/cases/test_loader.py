import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fde_ray.cases.authoring.writers import write_manifest
from fde_ray.cases.foreign import MAX_TEXT_BYTES
from fde_ray.cases.package import load_case, load_cases
from fde_ray.cases.records import Case, ContentDomain, IssueType
from fde_ray.model.errors import CaseError, FdeRayError

Spoil = Callable[[str, bytes | str], Path]


def refused(root: Path) -> str:
    """Return the one line that the loader says about a wrong case."""
    with pytest.raises(CaseError) as caught:
        load_case(root)
    text = str(caught.value)
    assert "\n" not in text
    assert isinstance(caught.value, FdeRayError)
    return text


def test_a_case_tells_its_id_points_and_schema(rolling: Case) -> None:
    assert (rolling.case_id, rolling.slug) == ("017", "cold_rolling_sequencing")
    assert [point.key for point in rolling.points] == [record.key for record in rolling.admission]
    assert len(rolling.points) == 6
    kinds = [point.issue_type for point in rolling.points]
    assert (kinds.count(IssueType.MISSING), kinds.count(IssueType.INVALIDATED)) == (4, 1)
    domains = [point.content_domain for point in rolling.points]
    assert domains.count(ContentDomain.CONSTRAINT) == 3
    assert rolling.submission_schema.files[0].row_set == "decision"


def test_each_answer_stands_verbatim_in_the_information(rolling: Case) -> None:
    assert all(point.answer in rolling.information for point in rolling.points)


def test_hashes_follow_their_own_files_only(copy: Path, spoil: Spoil) -> None:
    before = load_case(copy)
    after = load_case(spoil("sealed/truth/hidden.csv", "a,b\n1,2\n"))
    assert after.scoring_hash != before.scoring_hash
    assert after.visible_hash == before.visible_hash
    assert after.gt_hash == before.gt_hash
    other = load_case(spoil("data/more.txt", "more\n"))
    assert other.visible_hash != after.visible_hash
    assert other.scoring_hash == after.scoring_hash


def test_an_unknown_case_names_the_known_ones() -> None:
    cases = load_cases(Path(__file__).resolve().parents[2] / "cases")
    with pytest.raises(CaseError, match="no case '999'; known cases: 017"):
        cases["999"]


def test_a_folder_without_cases_gives_none(tmp_path: Path) -> None:
    assert load_cases(tmp_path) == {}


def test_a_leftover_folder_is_passed_over_but_half_a_case_is_not(tmp_path: Path) -> None:
    (tmp_path / "017_gone" / "authoring" / "__pycache__").mkdir(parents=True)
    assert load_cases(tmp_path) == {}
    (tmp_path / "018_half" / "data").mkdir(parents=True)
    with pytest.raises(CaseError, match=r"case\.toml: is missing"):
        load_cases(tmp_path)


def test_two_folders_may_not_hold_one_case(copy: Path) -> None:
    text = (copy / "case.toml").read_text(encoding="utf-8")
    twin = copy.with_name("017_other")
    shutil.copytree(copy, twin)
    (twin / "case.toml").write_text(text.replace(copy.name[4:], "other"), encoding="utf-8")
    write_manifest(twin)
    with pytest.raises(CaseError, match="case 017 exists twice"):
        load_cases(copy.parent)


def test_a_huge_data_file_is_refused(spoil: Spoil) -> None:
    assert "huge.csv: is larger than" in refused(spoil("data/huge.csv", b"x" * (9 << 20)))


def test_a_missing_folder_of_cases_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="is no folder"):
        load_cases(tmp_path / "absent")


JSON_FILES = ["gt.json", "points.json", "submission_schema.json", "reference.json"]
BROKEN_JSON = {
    "empty": (b"", "is empty"),
    "blank": (b" \n ", "is empty"),
    "broken": (b'{\n "a": 1,\n "b" 2}', "line 3"),
    "duplicate keys": (b'{"a": 1, "a": 2}', "twice"),
    "not UTF-8": (b'{"a": "\xff\xfe"}', "is not UTF-8"),
    "NaN": (b'{"a": NaN}', "NaN"),
    "infinity": (b'{"a": 1e999}', "out of range"),
    "deep": (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
    "wrong type": (b"[1, 2]", ""),
    "number": (b"7", ""),
    "huge": (b" " * (MAX_TEXT_BYTES + 1), "larger than"),
}


@pytest.mark.parametrize("name", JSON_FILES)
@pytest.mark.parametrize("fault", BROKEN_JSON)
def test_a_broken_json_file_is_named_with_its_fault(spoil: Spoil, name: str, fault: str) -> None:
    content, says = BROKEN_JSON[fault]
    text = refused(spoil(f"sealed/{name}", content))
    assert name in text
    assert says in text


@pytest.mark.parametrize(
    ("content", "says"),
    {
        "empty": (b"", "is empty"),
        "broken": (b'format = "fde_ray.case/1"\nid = = 3\n', "line 2"),
        "duplicate": (b"id = 1\nid = 2\n", "line 2"),
        "not UTF-8": (b"id = '\xff'\n", "is not UTF-8"),
        "wrong enum": (b'format = "fde_ray.case/9"\n', "format"),
        "huge": (b"#" * (MAX_TEXT_BYTES + 1), "larger than"),
    }.values(),
)
def test_a_broken_case_toml_is_named_with_its_fault(
    spoil: Spoil, content: bytes, says: str
) -> None:
    text = refused(spoil("case.toml", content))
    assert "case.toml" in text
    assert says in text


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('direction = "min"', 'direction = "low"', "direction"),
        ("eval_s = 10", "eval_s = nan", "limits.eval_s"),
        ("eval_s = 10", "eval_s = -1", "limits.eval_s"),
        ('version = "1.0.0"', 'version = "one"', "version"),
        ('kind = "artifact"', 'kind = "artifact"\nextra = 1', "extra"),
        ("id = 17", "id = 18", "folder"),
        ("id = 17", 'id = "17x"', "id"),
    ],
)
def test_a_wrong_field_of_case_toml_is_named(
    copy: Path, spoil: Spoil, old: str, new: str, says: str
) -> None:
    text = (copy / "case.toml").read_text(encoding="utf-8")
    assert old in text
    assert says in refused(spoil("case.toml", text.replace(old, new)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"answer": "This sentence stands nowhere."}, "verbatim"),
        ({"issue_type": "vague"}, "issue_type"),
        ({"content_domain": "taste"}, "content_domain"),
        ({"triggers": ["One?", "Two?"]}, "triggers"),
        ({"triggers": "One?"}, "triggers"),
        ({"key": "sneaky"}, "without its own key"),
        ({"hint": "no"}, "hint"),
        ({"requirement": ""}, "requirement"),
    ],
)
def test_a_wrong_point_is_named_with_its_field(
    copy: Path, spoil: Spoil, change: dict[str, object], says: str
) -> None:
    registry = json.loads((copy / "sealed/gt.json").read_text(encoding="utf-8"))
    first = next(iter(registry))
    registry[first].update(change)
    text = refused(spoil("sealed/gt.json", json.dumps(registry)))
    assert says in text
    assert first in text


def test_points_must_follow_the_registry(copy: Path, spoil: Spoil) -> None:
    points = json.loads((copy / "sealed/points.json").read_text(encoding="utf-8"))
    turned = dict(reversed(points.items()))
    assert "same order" in refused(spoil("sealed/points.json", json.dumps(turned)))


def test_an_alias_may_not_name_two_fields(copy: Path, spoil: Spoil) -> None:
    schema = json.loads((copy / "sealed/submission_schema.json").read_text(encoding="utf-8"))
    schema["files"][0]["fields"][0]["aliases"].append("coil")
    text = refused(spoil("sealed/submission_schema.json", json.dumps(schema)))
    assert "'coil' names two fields" in text


@pytest.mark.parametrize("name", ["instruction.md", "case.toml", "sealed/evaluator.py"])
def test_a_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    assert f"{name}: is missing" in refused(copy)


def test_a_changed_file_breaks_the_manifest(copy: Path) -> None:
    with (copy / "data/coils.csv").open("ab") as stream:
        stream.write(b"C1,2,3\n")
    assert "coils.csv: differs from its hash" in refused(copy)


def test_an_unlisted_file_is_refused(copy: Path) -> None:
    (copy / "data/more.csv").write_bytes(b"a\n")
    assert "more.csv: is not listed" in refused(copy)


def test_a_listed_file_must_be_there(copy: Path) -> None:
    (copy / "data/grades.csv").unlink()
    assert "lists 'data/grades.csv'" in refused(copy)


@pytest.mark.parametrize("name", ["solution.py", "sealed/answers.txt", "sealed/more/x", "lib/x.py"])
def test_a_file_without_a_place_is_refused(spoil: Spoil, name: str) -> None:
    assert "has no place" in refused(spoil(name, "x\n"))


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (b"", "is empty"),
        (b"zz  case.toml\n", "line 1"),
        (b"\xff\n", "is not UTF-8"),
        ((b"0" * 64 + b"  case.toml\n") * 2, "listed twice"),
    ],
)
def test_a_broken_manifest_is_named(copy: Path, lines: bytes, says: str) -> None:
    (copy / "MANIFEST.sha256").write_bytes(lines)
    text = refused(copy)
    assert "MANIFEST.sha256" in text
    assert says in text


def test_links_pipes_and_odd_names_are_refused(copy: Path) -> None:
    link = copy / "data" / "link.csv"
    link.symlink_to("/etc/hostname")
    assert "is a link" in refused(copy)
    link.unlink()
    os.link(copy / "sealed/params.json", link)
    assert "is a hard link" in refused(copy)
    link.unlink()
    os.mkfifo(link)
    assert "is a device, pipe or socket" in refused(copy)
    link.unlink()
    (copy / "data" / "two\nlines.csv").write_bytes(b"a\n")
    assert "control characters" in refused(copy)


def test_a_linked_folder_is_refused(copy: Path, tmp_path: Path) -> None:
    (copy / "data" / "up").symlink_to(tmp_path)
    assert "is a link" in refused(copy)
    other = tmp_path / "other"
    other.symlink_to(copy)
    assert "is no case folder" in refused(other)


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"code": 1}', b"\xff", b""])
def test_a_broken_mutant_is_named(spoil: Spoil, content: bytes) -> None:
    assert "odd.json" in refused(spoil("sealed/mutants/odd.json", content))
