"""The progress line on a terminal and in a log."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import pytest

from fde_ray.cli.progress import ProgressLine, clock_text, described
from fde_ray.engine.campaign import Progress
from fde_ray.model.states import PauseCause, Phase


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Watch:
    at = 0.0

    def __call__(self) -> float:
        return self.at


def progress(graded: int, **changes: Any) -> Progress:
    phases = Counter({Phase.DONE: graded, Phase.SOLVING: 2, Phase.QUEUED: 7 - graded})
    fields: dict[str, Any] = {
        "elapsed_s": 0.0,
        "planned": 9,
        "finished": graded,
        "phases": phases,
        "held": Counter(),
        "graded": graded,
        "rounds": 4,
        "cost_nanousd": 0,
        "offline": True,
    }
    return Progress(**fields | changes)


def test_a_line_tells_runs_by_phase_rounds_and_cost() -> None:
    text = described(progress(1))
    assert text == "1/9 runs graded · queued 6 solving 2 · 4 rounds answered · $0 (offline)"


def test_runs_set_aside_and_unknown_cost_are_told() -> None:
    phases = Counter({Phase.DONE: 1, Phase.QUARANTINED: 2, Phase.CANCELLED: 1})
    text = described(progress(1, phases=phases, cost_nanousd=None, offline=False))
    assert "2 set aside" in text
    assert text.endswith("cost unknown")


def test_cancelled_runs_are_told_apart_from_those_set_aside() -> None:
    phases = Counter({Phase.DONE: 1, Phase.CANCELLED: 3})
    text = described(progress(1, phases=phases))
    assert "cancelled 3" in text
    assert "set aside" not in text


def test_shared_runs_that_wait_for_a_grade_are_told() -> None:
    assert "· to grade 2 ·" in described(progress(1, to_grade=2))


def test_runs_that_wait_for_a_provider_are_told() -> None:
    text = described(progress(1, held=Counter({PauseCause.PROVIDER: 2})))
    assert "2 held: provider" in text


def test_a_log_gets_few_lines_and_always_the_last() -> None:
    watch, log = Watch(), io.StringIO()
    with ProgressLine(stream=log, now=watch) as line:
        for graded in range(8):
            watch.at = graded * 1.0
            line.show(progress(graded))
    lines = log.getvalue().splitlines()
    assert [one.split()[:2] for one in lines] == [["0:00", "0/9"], ["0:05", "5/9"], ["0:07", "7/9"]]
    assert "\x1b" not in log.getvalue()


def test_a_log_says_nothing_twice() -> None:
    watch, log = Watch(), io.StringIO()
    with ProgressLine(stream=log, now=watch) as line:
        for second in range(0, 100, 10):
            watch.at = float(second)
            line.show(progress(3))
    assert len(log.getvalue().splitlines()) == 1


def test_a_sweep_of_days_keeps_a_short_log() -> None:
    watch, log = Watch(), io.StringIO()
    with ProgressLine(stream=log, now=watch) as line:
        for second in range(0, 7200, 5):
            watch.at = float(second)
            line.show(progress(1, rounds=second))
    assert len(log.getvalue().splitlines()) < 160


def test_a_terminal_shows_one_line_that_is_drawn_again() -> None:
    terminal = Terminal()
    with ProgressLine(stream=terminal, now=Watch()) as line:
        line.show(progress(1))
        line.show(progress(2))
    assert terminal.getvalue().count("\n") == 1
    assert terminal.getvalue().count("\r\x1b[2K") == 2
    assert terminal.getvalue().endswith("\n")


def test_a_terminal_that_cannot_draw_gets_lines_as_a_log_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    with ProgressLine(stream=terminal, now=Watch()) as line:
        line.show(progress(1))
    assert "\x1b" not in terminal.getvalue()


def test_durations_read_like_a_clock() -> None:
    assert [clock_text(s) for s in (0, 75, 3661)] == ["0:00", "1:15", "1:01:01"]


def test_a_breaker_is_told_beside_the_figures() -> None:
    text = described(progress(1, notices=("breaker of sweep x: shim_lost", "another")))
    assert text.endswith("$0 (offline) · breaker of sweep x: shim_lost")
