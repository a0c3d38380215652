"""Solves the rolling order: greedy start, then annealing with or-opt and swap moves.

A plan is a coil order plus wished roll changes; a change that a believed rule makes necessary is
put in while decoding, so every order can be rolled. The model is written independently of the
evaluator.
"""

import csv
import datetime
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WEEK_START = datetime.datetime(2031, 3, 3, 5)
ROLL_CHANGE_MIN = 75
ROLL_CHANGE_POINTS = 90
LATE_POINTS = 12
NAIVE_POINTS_PER_TENTH_MM = 6
HOT, COLD = 40.0, 8.0
NEVER = 10**9
State = tuple[int, int, int, int]
START: State = (0, 0, 0, 0)


@dataclass(frozen=True)
class Plan:
    """order: coil indices; changes: True where a fresh roll set goes in before the coil."""

    order: tuple[int, ...]
    changes: tuple[bool, ...]
    points: int


class Model:
    """The week as the planner believes it to be: data plus beliefs about the hidden rules."""

    def __init__(self, data: Path, beliefs: Mapping[str, Any]) -> None:
        with (data / "coils.csv").open(encoding="utf-8", newline="") as stream:
            coils = list(csv.DictReader(stream))
        with (data / "grades.csv").open(encoding="utf-8", newline="") as stream:
            table = {row["from_grade"]: row for row in csv.DictReader(stream)}
        self.ids = [coil["coil_id"] for coil in coils]
        self.count = len(coils)
        self.width = [int(coil["width_mm"]) for coil in coils]
        self.exposed = [coil["finish"] == "E" for coil in coils]
        self.minutes = [int(coil["mill_minutes"]) for coil in coils]
        self.gauge = [round(float(coil["exit_gauge_mm"]) * 1000) for coil in coils]
        basis = f"{beliefs['length_gauge']}_gauge_mm"
        self.length = [
            math.floor(
                int(coil["mass_kg"])
                * 10**9
                / (7850 * int(coil["width_mm"]) * round(float(coil[basis]) * 1000))
                + 0.5
            )
            for coil in coils
        ]
        self.due = [self._due(coil["promised_date"], beliefs["promised_minute"]) for coil in coils]
        self.switch = [[int(table[a["grade"]][b["grade"]]) for b in coils] for a in coils]
        self.tenth_points = beliefs["gauge_points_per_tenth"]
        self.warm_up = beliefs["warm_up_coils"] if beliefs["warm_up_coils"] is not None else NEVER
        self.limit = (beliefs["roll_limit_km"] or NEVER) * 1000
        self.fresh = (beliefs["exposed_limit_km"] or NEVER) * 1000
        scale = beliefs.get("gauge_weight", 1.0)
        self.pair = [
            [
                self.switch[i][j]
                + abs(self.width[i] - self.width[j]) // 10
                + self._gauge_points(i, j, beliefs["gauge_metric"], scale)
                for j in range(self.count)
            ]
            for i in range(self.count)
        ]

    @staticmethod
    def _due(date: str, minute: int) -> int:
        day = datetime.datetime.fromisoformat(date)
        return int((day - WEEK_START).total_seconds()) // 60 + minute

    def _gauge_points(self, i: int, j: int, metric: str, scale: float) -> int:
        thin, thick = sorted((self.gauge[i], self.gauge[j]))
        if metric == "ratio":
            return int(scale * (self.tenth_points * ((thick - thin) * 10 // thin)))
        if metric == "none":
            return 0
        return int(scale * NAIVE_POINTS_PER_TENTH_MM * (thick - thin) // 100)

    def decoded(self, order: list[int], wished: list[bool]) -> tuple[int, list[bool]]:
        """Return points and the roll changes of an order."""
        states = self.walked(order, wished, 0, (0, 0, 0, 0), [], NEVER)
        assert states is not None
        return states[-1][0], [i > 0 and state[3] == 1 for i, state in enumerate(states)]

    def walked(
        self,
        order: list[int],
        wished: list[bool],
        start: int,
        state: State,
        known: list[State],
        slack: int,
    ) -> list[State] | None:
        """Return the state after each coil from `start` on.

        A state is points, clock, metres on the roll set, coils on the roll set. None when the
        points run more than `slack` above those of `known` at the same place.
        """
        width, length, exposed = self.width, self.length, self.exposed
        warm_up, limit, fresh = self.warm_up, self.limit, self.fresh
        pair, switch, minutes, due = self.pair, self.switch, self.minutes, self.due
        points, clock, rolled, place = state
        last = order[start - 1] if start else -1
        states: list[State] = []
        for at in range(start, len(order)):
            coil = order[at]
            rolled += length[coil]
            if last < 0:
                place = 1
            elif (
                wished[coil]
                or rolled > limit
                or (exposed[coil] and rolled > fresh)
                or (place >= warm_up and width[coil] > width[last])
            ):
                points += ROLL_CHANGE_POINTS + switch[last][coil]
                clock += ROLL_CHANGE_MIN + switch[last][coil]
                rolled = length[coil]
                place = 1
            else:
                points += pair[last][coil]
                clock += switch[last][coil]
                place += 1
            clock += minutes[coil]
            late = clock - due[coil]
            if late > 0:
                points += LATE_POINTS * ((late + 59) // 60)
            states.append((points, clock, rolled, place))
            if known and points - known[at][0] > slack:
                return None
            last = coil
        return states


def greedy(model: Model) -> Plan:
    """Return a nearest-neighbour plan that also looks at the promised dates."""
    left = list(range(model.count))
    left.sort(key=lambda coil: (model.due[coil] // 1440, -model.width[coil]))
    order: list[int] = []
    while left:
        window = left[:10]
        last = order[-1] if order else None
        best = window[0] if last is None else min(window, key=lambda c: _step(model, last, c))
        left.remove(best)
        order.append(best)
    points, changes = model.decoded(order, [False] * model.count)
    return Plan(tuple(order), tuple(changes), points)


def _step(model: Model, last: int, coil: int) -> tuple[int, int]:
    growth = ROLL_CHANGE_POINTS if model.width[coil] > model.width[last] else 0
    return model.pair[last][coil] + growth, coil


def anneal(model: Model, seed: int, steps: int) -> Plan:
    """Return the best plan that one annealing run meets."""
    draw = random.Random(seed).random
    order = list(greedy(model).order)
    wished = [False] * model.count
    states = model.walked(order, wished, 0, START, [], NEVER) or []
    best = (states[-1][0], list(order), list(wished))
    for step in range(steps):
        heat = HOT * (COLD / HOT) ** (step / steps)
        first, trial, wishes = _neighbour(draw, order, wished)
        before = states[first - 1] if first else START
        found = model.walked(trial, wishes, first, before, states, int(6 * heat) + 200)
        if found is None:
            continue
        gain = states[-1][0] - found[-1][0]
        if gain >= 0 or draw() < math.exp(gain / heat):
            order, wished = trial, wishes
            states = states[:first] + found
            if states[-1][0] < best[0]:
                best = (states[-1][0], order, wished)
    points, changes = model.decoded(best[1], best[2])
    return Plan(tuple(best[1]), tuple(changes), points)


def _neighbour(
    draw: Callable[[], float], order: list[int], wished: list[bool]
) -> tuple[int, list[int], list[bool]]:
    """Return the first changed place, the new order and the new wishes of a random move."""
    count = len(order)
    kind = draw()
    if kind < 0.05:
        first = int(draw() * count)
        wishes = wished.copy()
        wishes[order[first]] = not wishes[order[first]]
        return first, order, wishes
    trial = order.copy()
    if kind < 0.70:
        size = 1 if draw() < 0.5 else 2 + int(draw() * 7)
        start = int(draw() * (count - size + 1))
        segment = order[start : start + size]
        del trial[start : start + size]
        reach = count if draw() < 0.4 else 12
        spot = max(0, min(len(trial), start + int(draw() * (2 * reach + 1)) - reach))
        if size > 1 and draw() < 0.25:
            segment.reverse()
        trial[spot:spot] = segment
        return min(start, spot), trial, wished
    i, j = int(draw() * count), int(draw() * count)
    if kind < 0.92:
        trial[i], trial[j] = trial[j], trial[i]
        return min(i, j), trial, wished
    i, j = min(i, j), min(max(i, j), min(i, j) + 12)
    trial[i : j + 1] = trial[i : j + 1][::-1]
    return i, trial, wished
