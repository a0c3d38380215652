from __future__ import annotations

import json
from typing import Any

import pytest

from fde_ray.protocol import extraction
from fde_ray.protocol.replies import MalformedReply
from tests.protocol.builders import PACK

PATHS = {
    "workspace": "/in/workspace",
    "data_dir": "/in/data",
    "instruction": "/in/instruction.md",
    "information": "/in/information.md",
    "output_dir": "/out",
}
SCHEMA = '{"schema": "s/1", "files": [{"name": "{{workspace}}"}]}'
REPORT: dict[str, Any] = {
    "status": "partial",
    "notes": "two rows are missing",
    "files_found": ["out/plan.csv"],
    "files_normalized": ["plan.csv"],
    "sources": {"plan.csv": [{"path": "out/plan.csv", "sha256": "ab"}]},
    "unit_factors": {"mass": 1000},
    "rows": {"plan.csv": {"before": 12, "after": 10, "reason": "outside the graded set"}},
}


def prompt(**changes: Any) -> str:
    return extraction.prompt(PACK, SCHEMA, **(PATHS | changes))


@pytest.mark.parametrize("executable", [False, True])
def test_rule_19_the_prompt_names_every_path_and_holds_the_schema(executable: bool) -> None:
    text = prompt(executable=executable)
    assert all(path in text for path in PATHS.values())
    assert SCHEMA in text
    assert f"{PATHS['workspace']}/{extraction.SUMMARY_FILE}" in text
    assert extraction.RESULT_FILE in text


def test_rule_19_the_ordinary_case_is_checked_with_the_evaluator() -> None:
    assert "evaluate --data-dir /in/data --submission-dir /out" in prompt()
    assert "my-eval --data-dir" in prompt(evaluator="my-eval")


def test_rule_19_the_executable_case_is_not_run() -> None:
    text = prompt(executable=True)
    assert "--submission-dir" not in text
    assert "byte for byte" in text


RULES_20 = {
    "designation decides": "That designation decides what is graded",
    "values unchanged": "Never touch a value",
    "tolerance": "Using up a tolerance",
    "no adapter": "no wrapper, no shim",
    "rows disclosed": "give the counts before and after",
    "derived values": "the value is the agent's",
    "identifiers": "exactly one entry of the reference data fits",
    "naming rule": "a name against that rule is a mistake in substance",
    "order twice": "derive each such field from the source a second time",
    "nothing from data": "Nothing out of the data directory",
    "most precise": "The most exact copy",
    "local imports": "each module of the workspace that it imports",
    "incomplete": "latest complete state",
    "first score": "The first score ends your work",
    "status never scores": "it never scores",
    "no solving": "solver is not started again",
    "zero filling": "only if the schema defines absence",
}


@pytest.mark.parametrize("sentence", RULES_20.values(), ids=RULES_20)
def test_rule_20_the_prompt_carries_each_rule(sentence: str) -> None:
    assert sentence in prompt()


@pytest.mark.parametrize("sentence", ["`graded`, rows for keys outside", "`decision`, the set of"])
def test_rule_21_the_prompt_tells_both_row_sets(sentence: str) -> None:
    assert sentence in prompt()


def test_rule_19_a_report_is_read_with_sources_factors_and_rows() -> None:
    report = extraction.parse_report(json.dumps(REPORT))
    assert report.status == "partial"
    assert report.sources["plan.csv"][0].path == "out/plan.csv"
    assert report.unit_factors == {"mass": 1000.0}
    assert report.rows["plan.csv"].after == 10


def test_rule_19_the_four_fields_of_the_paper_are_enough() -> None:
    keys = ("status", "notes", "files_found", "files_normalized")
    report = extraction.parse_report(json.dumps({k: REPORT[k] for k in keys} | {"extra": 1}))
    assert (report.sources, report.unit_factors, report.rows) == ({}, {}, {})


@pytest.mark.parametrize(
    "change",
    [
        {"status": "done"},
        {"status": None},
        {"status": ["success"]},
        {"notes": ["a"]},
        {"files_found": "plan.csv"},
        {"files_normalized": [1]},
        {"sources": ["plan.csv"]},
        {"sources": {"plan.csv": "out/plan.csv"}},
        {"sources": {"plan.csv": [{"path": "x"}]}},
        {"sources": {"plan.csv": [{"path": "x", "sha256": "y", "more": 1}]}},
        {"unit_factors": {"mass": "1000"}},
        {"unit_factors": {"mass": True}},
        {"unit_factors": {"mass": 0}},
        {"rows": {"plan.csv": {"before": "12", "after": 10, "reason": "x"}}},
        {"rows": {"plan.csv": {"before": -1, "after": 10, "reason": "x"}}},
        {"rows": {"plan.csv": {"before": 1.5, "after": 10, "reason": "x"}}},
    ],
    ids=str,
)
def test_a_report_with_a_wrong_type_is_malformed(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedReply):
        extraction.parse_report(json.dumps(REPORT | change))


@pytest.mark.parametrize("key", ["status", "notes", "files_found", "files_normalized"])
def test_a_report_lacking_a_field_is_malformed(key: str) -> None:
    with pytest.raises(MalformedReply, match=key):
        extraction.parse_report(json.dumps({k: v for k, v in REPORT.items() if k != key}))


@pytest.mark.parametrize("text", ["", "done", "[]", "{", '{"status": NaN}'])
def test_a_report_that_is_no_object_is_malformed(text: str) -> None:
    with pytest.raises(MalformedReply):
        extraction.parse_report(text)
