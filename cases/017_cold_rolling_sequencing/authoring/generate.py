"""Draws the business data of case 017: coils, grade changeovers and the planner's notes.

No parameter of a clarification point is an input here, so the visible files cannot tell one.
"""

import datetime
from pathlib import Path

from fde_ray.cases.authoring.randomness import Draws
from fde_ray.cases.authoring.writers import csv_text, write

SEED = 1701
WEEK_START = datetime.date(2031, 3, 3)
GRADES = ("DC01", "DC04", "H260", "H340", "T57", "V800")
COIL_COLUMNS = (
    "coil_id", "width_mm", "entry_gauge_mm", "exit_gauge_mm", "grade",
    "mass_kg", "finish", "mill_minutes", "promised_date",
)  # fmt: skip

NOTES = """MILL NOTES - cold mill 2, kept by the planning desk

Start of week: Monday 3 March 2031, 05:00, fresh rolls in the stand, no coil before.
Between two coils of different grade the mill stands for the minutes in grades.csv
(row = grade that leaves, column = grade that follows).
Putting in a fresh roll set takes 75 minutes; then the length rolled counts from zero again.
mill_minutes in coils.csv is threading plus all passes of that coil.
The mill runs day and night; coils go one after another without waiting.

What a week costs us, in points (lower is better):
 - grade changeover: 1 point for each minute in grades.csv, also across a roll change
 - width step: 1 point for each full 10 mm between neighbouring coils, up or down,
   not across a roll change
 - gauge jump: points for the jump in exit gauge between neighbouring coils,
   not across a roll change
 - roll change: 90 points each
 - late coil: 12 points for each started hour after the promised date

Finish E (exposed panels): may run anywhere in the roll set. Finish S: no special care.
Coil masses are weighed, gauges are ordered values. Tails and leaders are ignored.
"""


def coils(seed: int = SEED) -> list[dict[str, object]]:
    """Return the coil rows, sorted by id."""
    draws = Draws(seed)
    rows: list[dict[str, object]] = []
    for number in range(80):
        grade = draws.weighted(GRADES, (5, 4, 4, 3, 2, 2))
        width = 10 * draws.whole(82, 152)
        exit_gauge = round(0.3 * 7.0 ** draws.unit(), 2)
        entry_gauge = round(exit_gauge / (1.0 - draws.between(0.45, 0.75)), 2)
        mass = 10 * draws.whole(1200, 2400)
        minutes = draws.whole(50, 100)
        day = min(6, int(draws.unit() ** 0.85 * 7)) + 1
        rows.append(
            {
                "coil_id": f"C{4100 + 7 * number + draws.whole(0, 6)}",
                "width_mm": width,
                "entry_gauge_mm": f"{entry_gauge:.2f}",
                "exit_gauge_mm": f"{exit_gauge:.2f}",
                "grade": grade,
                "mass_kg": mass,
                "finish": "E" if draws.chance(0.38) else "S",
                "mill_minutes": minutes,
                "promised_date": (WEEK_START + datetime.timedelta(days=day)).isoformat(),
            }
        )
    return sorted(rows, key=lambda row: str(row["coil_id"]))


def changeovers(seed: int = SEED) -> list[dict[str, object]]:
    """Return the 6 x 6 changeover minutes, one row per grade that leaves."""
    draws = Draws(seed + 1)
    rows: list[dict[str, object]] = []
    for leaving in GRADES:
        row: dict[str, object] = {"from_grade": leaving}
        for following in GRADES:
            row[following] = 0 if following == leaving else 5 * draws.whole(3, 15)
        rows.append(row)
    return rows


def visible_files(seed: int = SEED) -> dict[str, str]:
    """Return the texts under data/ by name."""
    return {
        "coils.csv": csv_text(COIL_COLUMNS, coils(seed)),
        "grades.csv": csv_text(("from_grade", *GRADES), changeovers(seed)),
        "mill_notes.txt": NOTES,
    }


def main() -> None:
    """Write data/ beside this folder."""
    data = Path(__file__).resolve().parents[1] / "data"
    for name, text in visible_files().items():
        write(data / name, text)


if __name__ == "__main__":
    main()
