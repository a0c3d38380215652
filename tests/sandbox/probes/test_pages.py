"""What people read: the table, the page of the catalogue, the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fde_ray.sandbox.probes.__main__ import chosen, verdict_of
from fde_ray.sandbox.probes.catalogue import ATTEMPTS
from fde_ray.sandbox.probes.records import Finding, Group, Verdict
from fde_ray.sandbox.probes.reference import page
from fde_ray.sandbox.probes.table import table
from tests.sandbox.probes.builders import make_attempt

PAGE = Path(__file__).parents[3] / "docs" / "isolation.md"


def make_finding(runtime: str, verdict: Verdict) -> Finding:
    return Finding(
        attempt="door", group=Group.HOST, runtime=runtime, expected=Verdict.BLOCKED,
        verdict=verdict, reason="it was open", control="loose",
    )  # fmt: skip


def test_the_page_lists_the_attempts_that_there_are() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text, "run: python -m fde_ray.sandbox.probes.reference docs/isolation.md"


def test_a_page_without_its_marks_is_not_touched() -> None:
    with pytest.raises(ValueError, match="attempts"):
        page("# A page\n")


def test_the_page_tells_every_verdict() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{verdict}`" in text for verdict in Verdict)


def test_the_table_shows_each_runtime_and_what_is_not_as_expected() -> None:
    found = [make_finding("runc", Verdict.OPEN), make_finding("gvisor", Verdict.BLOCKED)]
    lines = table([make_attempt()], found).splitlines()
    assert lines[0].split() == ["attempt", "expected", "control", "runc", "gvisor"]
    assert lines[1].split() == ["door", "blocked", "loose", "open", "!", "blocked"]
    assert "door on runc: open: it was open" in lines
    assert lines[-1] == "runc: 0 of 1 as expected; gvisor: 1 of 1 as expected"


@pytest.mark.parametrize(
    ("runtime", "verdict", "code"),
    [
        ("gvisor", Verdict.BLOCKED, 0),
        ("gvisor", Verdict.UNPROVEN, 1),
        ("gvisor", Verdict.OPEN, 1),
        ("runc", Verdict.OPEN, 0),
    ],
)
def test_gvisor_alone_decides_the_exit_code(runtime: str, verdict: Verdict, code: int) -> None:
    assert verdict_of([make_finding(runtime, verdict)]) == code


def test_attempts_are_chosen_by_group_and_by_name() -> None:
    assert chosen(None, None) == list(ATTEMPTS)
    some = chosen(["deadline"], ["metadata"])
    assert {attempt.id for attempt in some} > {"metadata", "orphan"}
    assert {attempt.group for attempt in some} == {Group.NETWORK, Group.DEADLINE}
