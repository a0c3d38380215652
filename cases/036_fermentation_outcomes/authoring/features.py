"""Read the visible files, describe batches by their first hours, and book finished ones."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HORIZON = 40
STRAINS = ("KT-2", "KT-5", "KT-7")
LOTS = ("M11", "M12", "M13", "M14", "M15", "M16")
VESSELS = ("V1", "V2", "V3", "V4", "V5")
SETTINGS = ("temperature_c", "ph", "seed_density_g_l", "start_glucose_g_l", "feed_glucose_g_l")
AGES = (8, 10, 12, 14, 16, 18, 20, 22, 24, 26)

Matrix = NDArray[np.float64]
Row = Mapping[str, str]


@dataclass(frozen=True)
class Tables:
    """The visible files, grouped by batch."""

    batches: list[Row]
    sensors: dict[str, list[Row]]
    assays: dict[str, list[Row]]

    def finished(self) -> list[Row]:
        return [batch for batch in self.batches if batch["batch_id"] in self.assays]

    def running(self) -> list[Row]:
        return [batch for batch in self.batches if batch["batch_id"] not in self.assays]


def read_tables(data_dir: Path) -> Tables:
    return Tables(
        batches=read_rows(data_dir / "batches.csv"),
        sensors=_grouped(read_rows(data_dir / "sensors.csv")),
        assays=_grouped(read_rows(data_dir / "assays.csv")),
    )


def read_rows(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _grouped(rows: list[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["batch_id"], []).append(row)
    return groups


def hold_hours(batch: Row) -> float:
    """Hours between vessel fill and inoculation."""
    filled = datetime.fromisoformat(batch["filled_at"])
    return (datetime.fromisoformat(batch["inoculated_at"]) - filled).total_seconds() / 3600.0


def is_void(batch: Row, rule: int | str) -> bool:
    if rule == "none":
        return False
    alarms = batch["alarms"].split()
    return bool(alarms) if rule == "any" else str(rule) in alarms


def booked(batch: Row, assays: list[Row], params: Mapping[str, Any]) -> tuple[float, float, float]:
    """Titre, duration and productivity of a finished batch under `params`."""
    hold = hold_hours(batch)
    closing = assays[-1]
    if params["outcome_moment"] != "last_sample":
        guard = params["harvest_guard_h"] if params["outcome_moment"] == "harvest" else 0.0
        closing = next(
            (
                row
                for row in assays
                if float(row["hour"]) - hold >= guard
                and float(row["glucose_g_l"]) < params["harvest_glucose_g_l"]
            ),
            closing,
        )
    titre = float(closing["product_g_l"])
    if params["titre_basis"] == "cell_free":
        titre /= 1.0 - float(closing["cell_volume_pct"]) / 100.0
    duration = float(closing["hour"])
    if params["clock_zero"] == "inoculation":
        duration -= hold
    return titre, duration, titre / duration


def _one_hot(value: str, levels: tuple[str, ...]) -> list[float]:
    return [float(value == level) for level in levels]


def _series(sensors: list[Row], column: str) -> list[float]:
    return [float(row[column]) for row in sensors if row[column] and int(row["hour"]) <= HORIZON]


def plain_features(batch: Row, sensors: list[Row]) -> list[float]:
    """Settings, categories, alarms and the shape of the first hours."""
    hold = hold_hours(batch)
    gas = np.array(_series(sensors, "gas_uptake_mmol_l_h"))
    glucose = _series(sensors, "glucose_g_l")
    cells = _series(sensors, "cell_volume_pct")
    age = np.arange(len(gas)) - hold
    alarms = batch["alarms"].split()
    values = [hold, *(float(batch[name]) for name in SETTINGS)]
    values += [(float(batch["temperature_c"]) - 31.0) ** 2, (float(batch["ph"]) - 6.9) ** 2]
    values += _one_hot(batch["strain"], STRAINS) + _one_hot(batch["medium_lot"], LOTS)
    values += _one_hot(batch["vessel"], VESSELS)
    values += [float(str(code) in alarms) for code in range(1, 10)]
    values += list(gas[-5:])
    values += [gas[-4:].mean(), gas[-8:].mean(), gas.max(), float(gas.argmax()), gas.sum()]
    values += [float(np.interp(point, age, gas)) for point in AGES]
    values += [float(np.argmax(gas > level)) - hold for level in (5, 15, 30)]
    values += glucose[-4:] + cells[-5:]
    last = max(cells[-1], 1.0)
    values += [(glucose[-2] - glucose[-1]) / 6.0, glucose[-1] / last, last**2, 1.0 / last]
    return [float(value) for value in (*values, glucose[-1] / max(gas[-5:].mean(), 1.0))]


def mechanistic_features(batch: Row, sensors: list[Row]) -> list[float]:
    """Glucose left over cells, gas and slope, apart by strain and by lot."""
    gas = np.array(_series(sensors, "gas_uptake_mmol_l_h"))
    glucose = _series(sensors, "glucose_g_l")
    last = max(_series(sensors, "cell_volume_pct")[-1], 1.0)
    slope = max((glucose[-2] - glucose[-1]) / 6.0, 0.3)
    breath = float(gas[-4:].mean())
    base = [glucose[-1] / last, glucose[-1] / max(breath, 3.0), glucose[-1] / slope]
    base += [glucose[-1], last, breath, 1.0 / last]
    strain, lot = _one_hot(batch["strain"], STRAINS), _one_hot(batch["medium_lot"], LOTS)
    values = [value * flag for value in base for flag in (*strain, *lot)]
    values += [float(batch["feed_glucose_g_l"]) * flag for flag in (*strain, *lot)]
    values += [float(batch["start_glucose_g_l"]) * flag for flag in strain]
    return values


def late_features(batch: Row, sensors: list[Row]) -> list[float]:
    """What a quick look takes: hold time and the last few readings."""
    gas = _series(sensors, "gas_uptake_mmol_l_h")
    glucose, cells = _series(sensors, "glucose_g_l"), _series(sensors, "cell_volume_pct")
    last = [hold_hours(batch), math.fsum(gas[-5:]) / 5.0, *glucose[-2:], *cells[-2:]]
    return last + _one_hot(batch["strain"], STRAINS)
