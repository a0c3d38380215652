"""Question, answer and normalisation sets for the people and models that stand around the case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dialogues import COFFEE, COMPOUND, NESTED, POINTS, QUESTIONS, SLIDES, VAGUE

from fde_ray.cases.authoring.writers import json_text, write


def judge_cases(registry: dict[str, Any], admission: dict[str, Any]) -> list[dict[str, Any]]:
    """Each trigger and probe question covers its point alone; decoys and small talk cover none."""
    cases: list[dict[str, Any]] = []
    for key in POINTS:
        cases += [{"question": text, "covers": [key]} for text in registry[key]["triggers"]]
        cases.append({"question": QUESTIONS[key], "covers": [key]})
        cases += [{"question": text, "covers": []} for text in admission[key]["decoys"]]
    cases += [{"question": text, "covers": []} for text in (COFFEE, SLIDES, VAGUE)]
    cases.append({"question": COMPOUND, "covers": ["harvest_moment", "clock_zero"]})
    return cases


def customer_cases(registry: dict[str, Any]) -> list[dict[str, Any]]:
    """Asked for a point, the customer states its answer; small talk gets none of them."""
    told = [{"question": QUESTIONS[key], "states": [registry[key]["answer"]]} for key in NESTED]
    return told + [{"question": text, "states": []} for text in (COFFEE, SLIDES)]


def extractor_cases() -> list[dict[str, Any]]:
    """Small deliverables under other names, and the row each must become."""
    row = {"batch_id": "F1520", "titre_g_l": 40.125, "duration_h": 60.5}
    wanted = {**row, "productivity_g_l_h": 0.6632}
    return [
        {
            "file": "forecast.json",
            "content": json.dumps(
                [{"run": "F1520", "titre_mg_l": 40125, "duration": 60.5, "productivity": 0.6632}]
            ),
            "becomes": [wanted],
        },
        {
            "file": "outcome_forecast.csv",
            "content": "fermentation,run_hours,final_titre,rate_g_l_h\nF1520,60.5,40.125,0.6632\n",
            "becomes": [wanted],
        },
    ]


def write_calibration(sealed: Path) -> None:
    registry = json.loads((sealed / "gt.json").read_text(encoding="utf-8"))
    admission = json.loads((sealed / "points.json").read_text(encoding="utf-8"))
    folder = sealed / "calibration"
    write(folder / "judge.json", json_text(judge_cases(registry, admission)))
    write(folder / "customer.json", json_text(customer_cases(registry)))
    write(folder / "extractor.json", json_text(extractor_cases()))
