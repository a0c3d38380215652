"""The shim's own clock: the plane's word counts, an outage stands still."""

from __future__ import annotations

from fde_ray.shim.clock import SolveClock


def test_time_runs_down_between_two_words_of_the_plane() -> None:
    clock = SolveClock(100.0, 50.0, now=0.0)
    assert clock.remaining(10.0) == 90.0
    clock.heard(10.0, 95.0, paused=False)
    assert clock.remaining(12.0) == 93.0


def test_pause_of_the_plane_stands_still() -> None:
    clock = SolveClock(100.0, 50.0, now=0.0)
    clock.heard(10.0, 90.0, paused=True)
    assert clock.remaining(1000.0) == 90.0
    assert not clock.is_paused_too_long(1000.0)  # the plane counts its own pauses


def test_outage_stands_still_from_the_last_word_on() -> None:
    clock = SolveClock(100.0, 1000.0, now=0.0)
    clock.heard(10.0, 90.0, paused=False)
    clock.lost()
    assert clock.remaining(500.0) == 90.0
    clock.heard(500.0, 90.0, paused=False)
    assert clock.remaining(501.0) == 89.0


def test_outages_add_up_to_the_pause_cap() -> None:
    clock = SolveClock(100.0, 50.0, now=0.0)
    clock.lost()
    assert not clock.is_paused_too_long(30.0)
    clock.heard(30.0, 100.0, paused=False)
    clock.lost()
    assert not clock.is_paused_too_long(49.0)
    assert clock.is_paused_too_long(51.0)
