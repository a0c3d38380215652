from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path

import pytest

from fde_ray.protocol.packs import (
    PackError,
    PromptPack,
    builtin_pack,
    contract,
    filled,
    load_pack,
    placeholders,
)

PACK = builtin_pack()
FIRST_TEXT = "base"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = Path(str(files("fde_ray.protocol") / "packs_data" / "builtin"))
    return Path(shutil.copytree(source, tmp_path / "pack"))


@pytest.mark.parametrize("name", sorted(contract()))
def test_rule_04_each_text_renders_with_its_declared_placeholders(name: str) -> None:
    values = {key: f"<<{key}>>" for key in contract()[name].offered}
    text = PACK.render(name, **values)
    assert all(f"<<{key}>>" in text for key in contract()[name].placeholders)
    assert "{{" not in text
    assert text.strip() == text


@pytest.mark.parametrize("name", sorted(contract()))
def test_rule_04_a_value_too_many_or_too_few_is_an_error(name: str) -> None:
    values = dict.fromkeys(contract()[name].offered, "x")
    with pytest.raises(PackError, match="surplus"):
        PACK.render(name, **values, surplus="x")
    for key in contract()[name].placeholders:
        with pytest.raises(PackError, match=key):
            PACK.render(name, **{k: v for k, v in values.items() if k != key})


def test_rule_04_the_two_halves_are_hashed_apart() -> None:
    for name, rule in contract().items():
        changed = PromptPack({**PACK.texts, name: PACK.texts[name] + " More."})
        assert (changed.solve_hash != PACK.solve_hash) == (rule.half == "solve")
        assert (changed.grade_hash != PACK.grade_hash) == (rule.half == "grade")


def test_rule_04_agent_customer_and_detector_are_solve_extractor_and_judge_grade() -> None:
    grade = {name for name, rule in contract().items() if rule.half == "grade"}
    assert grade == {name for name in contract() if name.startswith(("extractor", "judge"))}
    assert all(rule.half in ("solve", "grade") for rule in contract().values())


def test_rule_04_another_pack_can_be_dropped_in(folder: Path) -> None:
    (folder / "continuation.txt").write_text("Go on now.\r\n")
    pack = load_pack(folder)
    assert pack.render("continuation") == "Go on now."
    assert pack.solve_hash != PACK.solve_hash
    assert pack.grade_hash == PACK.grade_hash


def test_a_copy_of_the_pack_has_the_same_hashes(folder: Path) -> None:
    copy = load_pack(folder)
    assert (copy.solve_hash, copy.grade_hash) == (PACK.solve_hash, PACK.grade_hash)


def test_an_optional_placeholder_may_be_left_out(folder: Path) -> None:
    (folder / "condition_interact.txt").write_text("Ask.")
    assert load_pack(folder).render("condition_interact", heading_marker="## Q") == "Ask."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no placeholder", "'instruction'"),
        ("{{instruction}} {{unheard_of}}", "declare"),
        ("{{instruction}} {{ instruction }}", "declare"),
        ("{{instruction}} {{instruction", "closed"),
        ("   \n", "placeholder"),
    ],
    ids=["missing", "undeclared", "spaced", "unclosed", "empty"],
)
def test_rule_04_a_text_with_wrong_placeholders_is_refused(
    folder: Path, text: str, reason: str
) -> None:
    (folder / "request_block.txt").write_text(text)
    with pytest.raises(PackError, match=reason.replace("'instruction'", "lacks")):
        load_pack(folder)


def test_a_pack_lacking_a_file_is_refused(folder: Path) -> None:
    (folder / f"{FIRST_TEXT}.txt").unlink()
    with pytest.raises(PackError, match=r"base\.txt cannot be read"):
        load_pack(folder)


def test_a_pack_with_an_empty_text_is_refused() -> None:
    with pytest.raises(PackError, match="empty"):
        PromptPack({**PACK.texts, "continuation": " "})


def test_a_pack_with_a_foreign_text_is_refused() -> None:
    with pytest.raises(PackError, match="not a text of a pack"):
        PromptPack({**PACK.texts, "zzz": "x"})


def test_a_pack_lacking_a_text_is_refused() -> None:
    with pytest.raises(PackError, match="missing"):
        PromptPack({"base": PACK.texts["base"]})


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"format = 1",
        b"[texts.base]\nhalf = 'solve'",
        b"format = 'fde_ray.pack/1'\n[texts.base]\nhalf = 'both'",
        b"format = 'fde_ray.pack/1'\n[texts.base]\ncolour = 'red'",
        b"format = 'fde_ray.pack/1'\ntexts = {}",
        b"\xff\xfe",
        b"[[[",
        b"x" * 300_000,
    ],
    ids=["empty", "type", "format", "half", "unknown", "none", "bytes", "toml", "huge"],
)
def test_a_malformed_manifest_is_refused(folder: Path, manifest: bytes) -> None:
    (folder / "pack.toml").write_bytes(manifest)
    with pytest.raises(PackError):
        load_pack(folder)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"pack\.toml cannot be read"):
        load_pack(tmp_path / "nowhere")


def test_an_unknown_text_is_refused() -> None:
    with pytest.raises(PackError, match="no text"):
        PACK.render("zzz")


def test_filling_replaces_once_and_refuses_what_has_no_value() -> None:
    assert filled("{{a}}{{b}}", {"a": "{{b}}", "b": "{{a}}"}) == "{{b}}{{a}}"
    assert placeholders("{{a}} {b} {{c}}") == {"a", "c"}
    with pytest.raises(PackError, match="no value"):
        filled("{{a}}", {})
