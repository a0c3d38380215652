"""Where the marks of the score-against-recall plot go, in the units of its drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .cells import has_questions
from .summary import GroupSummary, SweepSummary

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 18, 52
COLOURS = 8
DODGE = 15.0
MOST_STEPS = 50
MOST_RUNS = 400
LARGEST = 1e12
"""Scores beyond it stand at the edge of the plot."""

SHAPES = (
    "M0,-6a6,6 0 1,0 .01,0z",
    "M-5.5,-5.5h11v11h-11z",
    "M0,-7l6.5,12h-13z",
    "M0,-7.5l6.5,7.5l-6.5,7.5l-6.5,-7.5z",
    "M0,7l6.5,-12h-13z",
    "M-2,-6.5h4v4.5h4.5v4h-4.5v4.5h-4v-4.5h-4.5v-4h4.5z",
)


class Mark(NamedTuple):
    """A place in the drawing with what stands there."""

    x: float
    y: float
    title: str


class Series(NamedTuple):
    """One system under one condition."""

    label: str
    colour: int
    shape: str
    runs: tuple[Mark, ...]
    mean: Mark | None
    """None = Quality or Recall of the group is not known."""


class Tick(NamedTuple):
    at: float
    label: str


class Plot(NamedTuple):
    """The drawing. Single runs are left out when they are too many to be told apart."""

    series: tuple[Series, ...]
    runs_left_out: int
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    reference_y: float
    """Where score 1 is."""


class _Scale(NamedTuple):
    low: float
    high: float
    step: float

    def x(self, recall: float) -> float:
        return round(LEFT + recall * (WIDTH - LEFT - RIGHT), 1)

    def y(self, score: float) -> float:
        share = (max(self.low, min(self.high, score)) - self.low) / (self.high - self.low)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)


def score_against_recall(summary: SweepSummary) -> Plot | None:
    """Return the plot of the conditions with a question channel; None when nothing can be shown."""
    groups = [g for g in summary.groups if has_questions(g.condition) and _runs(g)]
    if not groups:
        return None
    scale = _scale([score for g in groups for _, score, _ in _runs(g)])
    several = len({g.condition for g in groups}) > 1
    systems = sorted({g.system for g in summary.groups})
    series = tuple(
        _series(g, place if several else systems.index(g.system), scale, several)
        for place, g in enumerate(groups)
    )
    drawn = sum(len(one.runs) for one in series)
    left_out = drawn if drawn > MOST_RUNS else 0
    if left_out:
        series = tuple(one._replace(runs=()) for one in series)
    return Plot(
        series=_dodged(series),
        runs_left_out=left_out,
        x_ticks=tuple(Tick(scale.x(p / 100), f"{p}") for p in range(0, 101, 20)),
        y_ticks=_y_ticks(scale),
        reference_y=scale.y(1.0),
    )


def _runs(group: GroupSummary) -> list[tuple[float, float, str]]:
    return [
        (run.recall, run.score, f"case {case.case_id}, repeat {run.repeat}")
        for case in group.cases
        for run in case.runs
        if run.recall is not None and run.score is not None
    ]


def _series(group: GroupSummary, place: int, scale: _Scale, several: bool) -> Series:
    quality, recall = group.metrics.quality.value, group.metrics.recall.value
    label = f"{group.system}, {group.condition}" if several else group.system
    known = quality is not None and recall is not None
    return Series(
        label=label,
        colour=place % COLOURS,
        shape=SHAPES[place % len(SHAPES)],
        runs=tuple(
            Mark(scale.x(x), scale.y(y), f"{label}, {where}: Recall {100 * x:.1f} %, score {y:.4g}")
            for x, y, where in _runs(group)
        ),
        mean=_mean_mark(label, quality, recall, scale) if known else None,
    )


def _mean_mark(label: str, quality: float | None, recall: float | None, scale: _Scale) -> Mark:
    x, y = recall or 0.0, quality or 0.0
    return Mark(scale.x(x), scale.y(y), f"{label}: Recall {100 * x:.1f} %, Quality {y:.4g}")


def _dodged(series: Sequence[Series]) -> tuple[Series, ...]:
    """Set means that would cover each other side by side, where there is room."""
    placed: list[Mark] = []
    moved = []
    for one in series:
        mean = _free_place(one.mean, placed) if one.mean else None
        if mean is not None:
            placed.append(mean)
        moved.append(one._replace(mean=mean))
    return tuple(moved)


def _free_place(mark: Mark, placed: Sequence[Mark]) -> Mark:
    for step in range(2 * MOST_STEPS):
        offset = DODGE * ((step + 1) // 2) * (1 if step % 2 else -1)
        tried = mark._replace(x=round(mark.x + offset, 1))
        inside = LEFT <= tried.x <= WIDTH - RIGHT
        if inside and not any(_near(tried, other) for other in placed):
            return tried
    return mark


def _near(one: Mark, other: Mark) -> bool:
    return abs(one.x - other.x) < DODGE - 2 and abs(one.y - other.y) < DODGE - 2


def _scale(scores: Sequence[float]) -> _Scale:
    kept = [max(-LARGEST, min(LARGEST, score)) for score in scores]
    low, high = min([0.0, *kept]), max([1.0, *kept])
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)
    return _Scale(math.floor(low / step) * step, math.ceil(high / step - 1e-9) * step, step)


def _y_ticks(scale: _Scale) -> tuple[Tick, ...]:
    steps = round((scale.high - scale.low) / scale.step)
    values = [scale.low + i * scale.step for i in range(steps + 1)]
    return tuple(Tick(scale.y(v), f"{v:.4g}") for v in values)
