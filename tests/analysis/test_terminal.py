from __future__ import annotations

import io

import pytest
from rich.console import Console

from fde_ray.analysis.aggregates import Total, total
from fde_ray.analysis.measures import Resampling
from fde_ray.analysis.summary import SweepSummary, summary
from fde_ray.analysis.terminal import headline, leaderboard_tables, leaderboard_text
from fde_ray.model.result import RunResult
from tests.analysis.builders import make_cost, make_plan, make_planned, make_result, make_unfinished
from tests.analysis.hostile import make_hostile_result

FEW = Resampling(resamples=20)


def summed(*results: RunResult) -> SweepSummary:
    return summary(results, make_plan(list(results)), resampling=FEW)


def rich_text(found: SweepSummary, width: int) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False, color_system=None)
    for table in leaderboard_tables(found, width=width):
        console.print(table)
    return out.getvalue()


def test_the_leaderboard_ranks_by_quality() -> None:
    text = leaderboard_text(
        summed(
            make_result(system="low", score=0.1),
            make_result(system="best", score=1.0),
            make_result(system="none", score=None),
        ),
        width=120,
    )
    lines = [line.split() for line in text.splitlines()]
    order = [line[0] for line in lines if line and line[0] in ("low", "best", "none")]
    assert order == ["best", "low", "none"]
    (best,) = [line for line in lines if line and line[0] == "best"]
    assert best[1:4] == ["1.0000", "1.0000", "100.0"]
    assert best[-1] == "1/1"


def test_what_is_missing_is_said() -> None:
    done = make_result("017", score=0.5)
    found = summary([done], [make_planned(done), make_unfinished("036")], resampling=FEW)
    text = leaderboard_text(found)
    assert "partial" in text
    assert "Not scored: pending 1." in text
    assert "1 of 2 planned runs scored" in text


@pytest.mark.parametrize("width", [200, 100, 80, 60, 40])
def test_lines_fit_the_terminal(width: int) -> None:
    found = summed(
        *(make_result(system=s) for s in ("short", "a-name-of-a-system-that-is-rather-long")),
        make_result(system="short", condition="hidden", offline=("customer", "judge")),
    )
    assert max(len(line) for line in leaderboard_text(found, width=width).splitlines()) <= width
    assert max(len(line.rstrip()) for line in rich_text(found, width).splitlines()) <= width


def test_a_narrow_terminal_keeps_quality_and_names_what_is_left_out() -> None:
    text = leaderboard_text(summed(make_result()), width=40)
    assert "Quality" in text
    assert "No room for:" in text
    assert "Redund" in text
    assert "Quality" in rich_text(summed(make_result()), 44)


@pytest.mark.parametrize("width", [1, 5, 20])
def test_an_absurd_width_does_not_fail(width: int) -> None:
    assert leaderboard_text(summed(make_result()), width=width)
    assert isinstance(rich_text(summed(make_result()), width), str)


def test_hostile_names_cannot_steer_the_terminal() -> None:
    found = summed(
        make_hostile_result(), make_result(system="[red]x[/red] \x1b[31m\u202e", sweep="s\x07")
    )
    for text in (leaderboard_text(found, width=200), rich_text(found, 200)):
        assert not any((ord(c) < 32 and c != "\n") or ord(c) in (0x7F, 0x9B) for c in text)
        assert "\u202e" not in text
        assert "[red]x[/red]" in text


def test_offline_and_unsafe_runs_are_labelled_first() -> None:
    text = leaderboard_text(summed(make_result(offline=("judge",), unsafe_sandbox=True)))
    first, second, *_ = text.splitlines()
    assert first == "OFFLINE: smoke and regression, not a model result (roles: judge)"
    assert second == "UNSAFE: at least one run had no sandbox"


def test_an_empty_sweep_has_a_leaderboard_too() -> None:
    text = leaderboard_text(summary([], []))
    assert text.startswith("no sweep: 0 of 0 planned runs scored, cost $0.0000")
    assert leaderboard_tables(summary([], [])) == []


def test_the_headline_tells_the_cost() -> None:
    found = summed(make_result(cost=(make_cost(cost=1_234_567_890),)))
    assert headline(found) == "small: 1 of 1 planned run scored, cost $1.2346"


def test_clarification_is_not_applicable_without_questions() -> None:
    assert "n/a" in leaderboard_text(summed(make_result(condition="hidden")))


@pytest.mark.parametrize(
    ("ledger", "said"),
    [
        (None, "unknown"),
        (total([]), "$0.0000"),
        (total([2_000_000_000]), "$2.0000"),
        (total([2_000_000_000, None]), "≥ $2.0000 (1 unknown)"),
        (total([None]), "unknown"),
    ],
    ids=["no_ledger", "no_call", "known", "lower_bound", "unpriced"],
)
def test_a_sweep_without_results_costs_what_its_ledger_says(
    ledger: Total | None, said: str
) -> None:
    found = summary([], [make_unfinished("017")], ledger_nanousd=ledger)
    assert headline(found).endswith(f"cost {said}")
