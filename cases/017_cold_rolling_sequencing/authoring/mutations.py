"""The mutants of case 017: the reference with two coils swapped or one cell changed."""

import itertools
from collections.abc import Iterator
from typing import Any

import solve

from fde_ray.cases.authoring.mutants import Mutant
from scripts import rows_of


def _faults(model: solve.Model, order: list[int], changes: set[int]) -> dict[str, int]:
    """Return by code how far the worst coil is over its rule, in millimetres or metres."""
    worst: dict[str, int] = {}
    rolled = place = 0
    for at, coil in enumerate(order):
        if at in changes:
            rolled = place = 0
        rolled += model.length[coil]
        place += 1
        growth = model.width[coil] - model.width[order[at - 1]] if place > model.warm_up else 0
        over = rolled - model.limit
        late = rolled - model.fresh if model.exposed[coil] else 0
        for code, excess in (
            ("width_growth", growth),
            ("roll_length", over),
            ("exposed_window", late),
        ):
            if excess > 0:
                worst[code] = max(worst.get(code, 0), excess)
    return worst


def _nearness(model: solve.Model, order: list[int], changes: set[int]) -> dict[str, int]:
    """Return by code how much room the tightest coil of a valid order still has."""
    room = {"width_growth": 10**9, "roll_length": 10**9, "exposed_window": 10**9}
    rolled = place = 0
    for at, coil in enumerate(order):
        if at in changes:
            rolled = place = 0
        rolled += model.length[coil]
        place += 1
        if place == model.warm_up and model.width[coil] > model.width[order[at - 1]]:
            room["width_growth"] = min(room["width_growth"], coil)
        room["roll_length"] = min(room["roll_length"], model.limit - rolled)
        if model.exposed[coil]:
            room["exposed_window"] = min(room["exposed_window"], model.fresh - rolled)
    return room


def mutant_list(model: solve.Model, reference: str) -> Iterator[Mutant]:
    """Yield the mutants of the reference: two or more for each rule, one for each scoring point."""
    rows = rows_of(reference)
    place_of = {coil_id: coil for coil, coil_id in enumerate(model.ids)}
    order = [place_of[row["coil_id"]] for row in rows]
    changes = {i for i, row in enumerate(rows) if row["roll_change"] == "1"}
    yield from _form_mutants(rows, changes)
    inside: dict[str, tuple[int, int, int]] = {}
    outside: dict[str, tuple[int, int, int]] = {}
    neutral: dict[str, tuple[int, int, int]] = {}
    before = _shares(model, order, changes)
    for i, j in itertools.combinations(range(len(order)), 2):
        trial = order.copy()
        trial[i], trial[j] = trial[j], trial[i]
        faults = _faults(model, trial, changes)
        if len(faults) == 1:
            ((code, excess),) = faults.items()
            outside[code] = min(outside.get(code, (10**9, 0, 0)), (excess, i, j))
        elif not faults:
            for code, room in _nearness(model, trial, changes).items():
                inside[code] = min(inside.get(code, (10**9, 0, 0)), (room, i, j))
            for key, share in _shares(model, trial, changes).items():
                if share != before[key]:
                    neutral.setdefault(key, (0, i, j))
    for code in ("width_growth", "roll_length", "exposed_window"):
        yield Mutant(f"{code}_inside", code, "inside", (), _swap(rows, inside[code]))
        yield Mutant(f"{code}_outside", code, "outside", (code,), _swap(rows, outside[code]))
    for key, found in sorted(neutral.items()):
        yield Mutant(f"neutral_{key}", key, "neutral", (), _swap(rows, found))


def _shares(model: solve.Model, order: list[int], changes: set[int]) -> dict[str, int]:
    clock = late = gauge = 0
    for at, coil in enumerate(order):
        if at:
            clock += model.switch[order[at - 1]][coil]
        if at in changes:
            clock += solve.ROLL_CHANGE_MIN
        elif at:
            thin, thick = sorted((model.gauge[order[at - 1]], model.gauge[coil]))
            gauge += (thick - thin) * 10 // thin
        clock += model.minutes[coil]
        late += -(-max(0, clock - model.due[coil]) // 60)
    return {"promised_time": late, "gauge_measure": gauge}


def _swap(rows: list[dict[str, str]], found: tuple[int, int, int]) -> tuple[dict[str, Any], ...]:
    _, i, j = found
    head = {"op": "set", "file": "schedule.csv"}
    return tuple(
        {**head, "row": row, "field": field, "value": rows[other][field]}
        for row, other in ((i, j), (j, i))
        for field in ("coil_id", "length_m")
    )


def _form_mutants(rows: list[dict[str, str]], changes: set[int]) -> Iterator[Mutant]:
    file, last = "schedule.csv", len(rows) - 1
    length = int(rows[5]["length_m"])
    plain = next(i for i in range(1, len(rows)) if i not in changes)
    fresh = min(changes)

    def one(name: str, side: Any, **edit: Any) -> Mutant:
        code = name.rsplit("_", 1)[0]
        codes = (code,) if side == "outside" else ()
        return Mutant(name, code, side, codes, ({"file": file, **edit},))

    def put(name: str, side: Any, row: int, field: str, value: object) -> Mutant:
        return one(name, side, op="set", row=row, field=field, value=value)

    yield one("coil_set_shuffled", "inside", op="swap", rows=[0, last])
    yield one("coil_set_missing", "outside", op="drop", row=last)
    yield put("coil_set_unknown", "outside", 3, "coil_id", "C1")
    yield one("coil_set_twice", "outside", op="append", values=rows[last])
    yield put("position_decimal", "inside", last, "position", "80.0")
    yield put("position_beyond", "outside", last, "position", "81")
    yield put("position_zero", "outside", last, "position", "0")
    yield put("roll_flag_decimal", "inside", fresh, "roll_change", "1.0")
    yield put("roll_flag_two", "outside", plain, "roll_change", "2")
    yield put("roll_flag_first", "outside", 0, "roll_change", "1")
    yield put("length_value_inside", "inside", 5, "length_m", length + 2)
    yield put("length_value_outside", "outside", 5, "length_m", length + 3)
