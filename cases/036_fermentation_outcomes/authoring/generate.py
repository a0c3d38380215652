"""Generate the fermentation world: visible files from a seed, hidden outcomes from parameters.

The visible bytes depend on the seed alone. `outcomes` turns the full hidden logs into the
figures that are scored, and is the only place where `params.json` enters.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from fde_ray.cases.authoring.randomness import Draws
from fde_ray.cases.authoring.writers import write

CASE_DIR = Path(__file__).resolve().parent.parent
SEED = 362026
BATCHES = 700
TRAINING = 520
VISIBLE_HOURS = 40
SAMPLE_STEP_H = 2
READING_STEP_H = 6
STEPS_PER_HOUR = 4
ALARM_RATES = {1: 0.10, 2: 0.07, 3: 0.06, 4: 0.08, 5: 0.07, 6: 0.05, 7: 0.08, 8: 0.05, 9: 0.06}
STRAINS = {"KT-2": (1.00, 1.00, 1.00), "KT-5": (0.91, 1.22, 1.08), "KT-7": (1.08, 0.84, 0.93)}
LOTS = {"M11": 1.00, "M12": 0.90, "M13": 1.09, "M14": 0.96, "M15": 1.13, "M16": 0.84}
VESSELS = {"V1": 0.0, "V2": 0.05, "V3": -0.06, "V4": 0.03, "V5": -0.02}

Row = list[str]


@dataclass(frozen=True)
class Sample:
    """One laboratory sample; hours since vessel fill, product per litre of whole broth."""

    hour: int
    glucose: float
    cell_volume: float
    product: float


@dataclass(frozen=True)
class Batch:
    """One run with its full log, of which target batches show the first hours only."""

    batch_id: str
    training: bool
    header: Row
    hold_h: float
    alarms: tuple[int, ...]
    gas: tuple[float, ...]
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class Recipe:
    """What the plant sets or the biology brings before the vessel is filled."""

    strain: str
    lot: str
    vessel: str
    temperature: float
    ph: float
    seed_density: float
    start_glucose: float
    feed_glucose: float
    hold_h: float
    lag_h: float
    vigour: float
    late_drift: float
    yield_drift: float
    tail_h: int
    alarms: tuple[int, ...]


def draw_recipe(draws: Draws) -> Recipe:
    strain = draws.pick(sorted(STRAINS))
    lot = draws.pick(sorted(LOTS))
    vessel = draws.pick(sorted(VESSELS))
    alarms = tuple(code for code, rate in sorted(ALARM_RATES.items()) if draws.chance(rate))
    return Recipe(
        strain=strain,
        lot=lot,
        vessel=vessel,
        temperature=round(draws.between(29.0, 33.0), 1),
        ph=round(draws.between(6.6, 7.2), 2),
        seed_density=round(draws.between(0.5, 1.5), 2),
        start_glucose=round(draws.between(11.0, 16.0), 1),
        feed_glucose=round(draws.between(40.0, 62.0), 1),
        hold_h=round(draws.between(2.0, 14.0) * 4.0) / 4.0,
        lag_h=draws.between(0.5, 2.5),
        vigour=math.exp(draws.normal(0.0, 0.05)),
        late_drift=math.exp(draws.normal(0.0, 0.06)),
        yield_drift=math.exp(draws.normal(0.0, 0.05)),
        tail_h=SAMPLE_STEP_H * int(draws.between(3.0, 11.0)),
        alarms=alarms,
    )


def alarm_effects(alarms: tuple[int, ...]) -> tuple[float, float]:
    """Factors on growth and on production rate."""
    growth = (0.95 if 2 in alarms else 1.0) * (0.93 if 7 in alarms else 1.0)
    production = (0.92 if 4 in alarms else 1.0) * (0.86 if 7 in alarms else 1.0)
    return growth, production


def simulate(recipe: Recipe, draws: Draws) -> tuple[tuple[float, ...], tuple[Sample, ...]]:
    """Hourly gas uptake and laboratory samples until a few hours past depletion."""
    growth_strain, product_strain, uptake_strain = STRAINS[recipe.strain]
    growth_alarm, product_alarm = alarm_effects(recipe.alarms)
    warmth = 1.0 - 0.02 * (recipe.temperature - 31.2) ** 2
    mu_max = 0.31 * growth_strain * recipe.vigour * warmth * growth_alarm
    ceiling = 24.0 * LOTS[recipe.lot] * (1.0 + VESSELS[recipe.vessel])
    acidity = 1.0 - 1.1 * (recipe.ph - 6.9) ** 2
    rate = 0.030 * product_strain * product_alarm * acidity * recipe.yield_drift
    cells, glucose, product = recipe.seed_density, recipe.start_glucose, 0.0
    fed_at, low_since, depleted_at = -1.0, -1.0, -1.0
    gas: list[float] = []
    samples: list[Sample] = []
    step = 1.0 / STEPS_PER_HOUR
    for tick in range(200 * STEPS_PER_HOUR):
        clock = tick * step
        age = clock - recipe.hold_h
        growing = age >= recipe.lag_h
        limit = glucose / (0.4 + glucose)
        mu = mu_max * limit * max(0.0, 1.0 - cells / ceiling) if growing else 0.0
        late = recipe.late_drift if clock > VISIBLE_HOURS else 1.0
        burn = (mu / 0.75 + 0.030 * uptake_strain * limit * late) * cells if growing else 0.0
        if tick % STEPS_PER_HOUR == 0:
            hour = tick // STEPS_PER_HOUR
            uptake = 9.0 * mu * cells + 1.1 * limit * cells if age >= 0 else 0.0
            gas.append(round(noisy(uptake, 0.03, 0.15, draws), 2))
            if hour % SAMPLE_STEP_H == 0:
                samples.append(draw_sample(hour, age, cells, glucose, product, draws))
                if 0 <= depleted_at <= clock - recipe.tail_h:
                    return tuple(gas), tuple(samples)
        cells += step * (mu * cells - (0.006 * cells if growing and glucose < 0.5 else 0.0))
        glucose = max(0.0, glucose - step * burn)
        made = rate * cells * limit if growing else 0.0
        product += step * (made - (0.012 * product if glucose < 0.8 else 0.0))
        if fed_at < 0:
            low_since = clock if glucose < 1.6 and low_since < 0 else low_since
            if low_since >= 0 and clock - low_since >= 3.0:
                glucose, fed_at = glucose + recipe.feed_glucose, clock
        elif depleted_at < 0 and glucose < 2.0:
            depleted_at = clock
    raise ValueError("batch never depletes its glucose")


def noisy(value: float, relative: float, absolute: float, draws: Draws) -> float:
    """Return a measured value, never below zero."""
    scale = 1.0 + draws.normal(0.0, relative)
    return max(0.0, value * scale + draws.normal(0.0, absolute))


def draw_sample(
    hour: int, age: float, cells: float, glucose: float, product: float, draws: Draws
) -> Sample:
    volume = 1.45 * cells / (1.0 + 0.0015 * cells)
    return Sample(
        hour=hour,
        glucose=round(noisy(glucose, 0.012, 0.05, draws), 2),
        cell_volume=round(volume * (1.0 + draws.normal(0.0, 0.012)), 1) if age >= 0 else 0.0,
        product=round(noisy(product, 0.012, 0.04, draws), 2),
    )


def build_batch(number: int, training: bool, draws: Draws) -> Batch:
    recipe = draw_recipe(draws)
    gas, samples = simulate(recipe, draws)
    filled = datetime(2025, 1, 6) + timedelta(minutes=15 * int(number * 19.3))
    inoculated = filled + timedelta(hours=recipe.hold_h)
    batch_id = f"F{1000 + number}"
    header = [
        batch_id,
        recipe.vessel,
        recipe.strain,
        recipe.lot,
        filled.strftime("%Y-%m-%d %H:%M"),
        inoculated.strftime("%Y-%m-%d %H:%M"),
        f"{recipe.temperature:.1f}",
        f"{recipe.ph:.2f}",
        f"{recipe.seed_density:.2f}",
        f"{recipe.start_glucose:.1f}",
        f"{recipe.feed_glucose:.1f}",
        " ".join(str(code) for code in recipe.alarms),
    ]
    return Batch(batch_id, training, header, recipe.hold_h, recipe.alarms, gas, samples)


def build_world(seed: int = SEED) -> list[Batch]:
    draws = Draws(seed)
    return [build_batch(number, number < TRAINING, draws) for number in range(BATCHES)]


def csv_text(header: str, rows: list[Row]) -> str:
    return "\n".join([header, *(",".join(row) for row in rows)]) + "\n"


def visible_files(world: list[Batch]) -> dict[str, str]:
    """Every data file by name; sorted rows, LF, no trailing spaces."""
    sensors: list[Row] = []
    assays: list[Row] = []
    for batch in world:
        by_hour = {sample.hour: sample for sample in batch.samples}
        for hour, uptake in enumerate(batch.gas):
            if not batch.training and hour > VISIBLE_HOURS:
                break
            reading = by_hour[hour] if hour % READING_STEP_H == 0 else None
            lab = [f"{reading.glucose:.2f}", f"{reading.cell_volume:.1f}"] if reading else ["", ""]
            sensors.append([batch.batch_id, str(hour), f"{uptake:.2f}", *lab])
        if batch.training:
            assays.extend(
                [
                    batch.batch_id,
                    str(sample.hour),
                    f"{sample.glucose:.2f}",
                    f"{sample.cell_volume:.1f}",
                    f"{sample.product:.2f}",
                ]
                for sample in batch.samples
            )
    return {
        "batches.csv": csv_text(
            "batch_id,vessel,strain,medium_lot,filled_at,inoculated_at,temperature_c,ph,"
            "seed_density_g_l,start_glucose_g_l,feed_glucose_g_l,alarms",
            [batch.header for batch in world],
        ),
        "sensors.csv": csv_text(
            "batch_id,hour,gas_uptake_mmol_l_h,glucose_g_l,cell_volume_pct", sensors
        ),
        "assays.csv": csv_text("batch_id,hour,glucose_g_l,cell_volume_pct,product_g_l", assays),
    }


def harvest_sample(batch: Batch, params: dict[str, Any]) -> Sample:
    """The sample that closes the run under the outcome rule of `params`."""
    if params["outcome_moment"] == "last_sample":
        return batch.samples[-1]
    guard = params["harvest_guard_h"] if params["outcome_moment"] == "harvest" else 0.0
    for sample in batch.samples:
        age = sample.hour - batch.hold_h
        if age >= guard and sample.glucose < params["harvest_glucose_g_l"]:
            return sample
    return batch.samples[-1]


def outcome(batch: Batch, params: dict[str, Any]) -> tuple[float, float, float]:
    """Titre, duration and productivity under `params`."""
    sample = harvest_sample(batch, params)
    titre = sample.product
    if params["titre_basis"] == "cell_free":
        titre /= 1.0 - sample.cell_volume / 100.0
    duration = float(sample.hour)
    if params["clock_zero"] == "inoculation":
        duration -= batch.hold_h
    return round(titre, 4), round(duration, 2), round(titre / duration, 5)


def is_void(batch: Batch, params: dict[str, Any]) -> bool:
    rule = params["void_alarm_code"]
    if rule == "none":
        return False
    return bool(batch.alarms) if rule == "any" else rule in batch.alarms


def truth_text(world: list[Batch], params: dict[str, Any]) -> str:
    rows: list[Row] = []
    for batch in world:
        if batch.training:
            continue
        titre, duration, productivity = outcome(batch, params)
        void = "1" if is_void(batch, params) else "0"
        rows.append(
            [batch.batch_id, void, f"{titre:.4f}", f"{duration:.2f}", f"{productivity:.5f}"]
        )
    return csv_text("batch_id,void,titre_g_l,duration_h,productivity_g_l_h", rows)


def main() -> None:
    params = json.loads((CASE_DIR / "sealed" / "params.json").read_text(encoding="utf-8"))
    world = build_world()
    for name, text in visible_files(world).items():
        write(CASE_DIR / "data" / name, text)
    write(CASE_DIR / "sealed" / "truth" / "outcomes.csv", truth_text(world, params))


if __name__ == "__main__":
    main()
