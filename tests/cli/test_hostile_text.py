"""What agents and models wrote never reaches the terminal as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from tests.cli.homes import DETAIL, HOSTILE, LOST, SWEEP

LINES = {
    "show": ("run", "show", HOSTILE),
    "show a lost run": ("run", "show", LOST),
    "explain": ("run", "explain", LOST),
    "logs": ("run", "logs", HOSTILE),
    "ls": ("results", "ls", SWEEP),
    "report": ("report", SWEEP),
    "cost": ("cost", SWEEP),
}


def harmless(text: str) -> bool:
    return text.replace("\n", "").isprintable()


@pytest.mark.parametrize("line", LINES.values(), ids=LINES.keys())
def test_output_for_people_holds_no_control_characters(
    line: tuple[str, ...], home: Path, cli: CommandLine
) -> None:
    ended = cli(*line)
    assert ended.code == 0
    assert harmless(ended.out)
    assert harmless(ended.err)


@pytest.mark.parametrize("line", LINES.values(), ids=LINES.keys())
def test_json_spells_control_characters_out(
    line: tuple[str, ...], home: Path, cli: CommandLine
) -> None:
    ended = cli(*line, "--json")
    assert ended.code == 0
    assert harmless(ended.out)


def test_json_still_holds_the_exact_text(home: Path, cli: CommandLine) -> None:
    assert cli("run", "show", LOST, "--json").json["state"]["detail"] == DETAIL
    answered = [e for e in cli("run", "logs", HOSTILE, "--json").json["events"] if "answer" in e]
    assert "\u202e" in answered[0]["answer"]


def test_a_dialogue_of_megabytes_stays_readable(home: Path, cli: CommandLine) -> None:
    assert len(cli("run", "show", HOSTILE).out) < 200_000


def test_one_event_is_one_line_of_the_log(home: Path, cli: CommandLine) -> None:
    events = cli("run", "logs", HOSTILE, "--json").json
    lines = cli("run", "logs", HOSTILE).out.splitlines()
    assert len(lines) == len(events["events"]) + len(events["calls"])
