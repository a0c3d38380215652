"""Rebuild everything that follows from the generator, the parameters and the solver outputs.

Written by hand and left alone: case.toml, instruction.md, and of sealed/ information.md, gt.json,
points.json, params.json, submission_schema.json and evaluator.py.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Mapping
from typing import Any

from calibration import write_calibration
from dialogues import DIALOGUES, NESTED, POINTS, Dialogue
from generate import CASE_DIR, build_world, truth_text, visible_files
from mutations import mutants

from fde_ray.cases.authoring.mutants import mutant_text
from fde_ray.cases.authoring.probe_runs import Evaluation, evaluate_files
from fde_ray.cases.authoring.strict_reader import tree_hash
from fde_ray.cases.authoring.vendoring import revendor
from fde_ray.cases.authoring.writers import csv_text, json_text, write, write_manifest

SEALED = CASE_DIR / "sealed"
OUTPUTS = CASE_DIR / "authoring" / "outputs"
TARGET = "predictions.csv"
DERIVED = ("data", "sealed/truth", "sealed/best_solution", "sealed/probes", "sealed/mutants")
NOTES = "# Notes\n\nRead the files, fitted on the finished batches, wrote one figure per goal.\n"
SOLVER = (
    "ridge, log-ridge, support vectors and gradient boosting, averaged and moved to the wanted"
    " quantile, blended with linear quantile fits; durations end at a sample"
)


def output(name: str) -> str:
    return (OUTPUTS / f"{name}.csv").read_text(encoding="utf-8")


def table(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def clear() -> None:
    for name in DERIVED:
        shutil.rmtree(CASE_DIR / name, ignore_errors=True)
        (CASE_DIR / name).mkdir(parents=True)


def write_world() -> None:
    params = json.loads((SEALED / "params.json").read_text(encoding="utf-8"))
    world = build_world()
    for name, text in visible_files(world).items():
        write(CASE_DIR / "data" / name, text)
    write(SEALED / "truth" / "outcomes.csv", truth_text(world, params))


def reference_record(raw: float, components: Mapping[str, float]) -> dict[str, Any]:
    names = ("evaluator.py", "params.json", "submission_schema.json", "truth/outcomes.csv")
    return {
        "raw": raw,
        "quality": 1.0,
        "components": dict(components),
        "solver": SOLVER,
        "seeds": [3],
        "budget": "one pass of five-fold fits, under half a minute on one thread",
        "best_bound": None,
        "noise": json.loads((OUTPUTS / "noise.json").read_text(encoding="utf-8"))["sigma"],
        "scored_with": tree_hash([(name, (SEALED / name).read_bytes()) for name in names]),
    }


def write_reference() -> None:
    """Score the reference against a placeholder, then record what it reached."""
    best = output("reference")
    write(SEALED / "best_solution" / TARGET, best)
    write(SEALED / "reference.json", json_text(reference_record(1.0, {})))
    result = scored({TARGET: best}).result
    if result is None:
        raise ValueError("the evaluator does not score the reference")
    write(
        SEALED / "reference.json",
        json_text(reference_record(result["raw"], result["components"])),
    )


def scored(files: Mapping[str, str]) -> Evaluation:
    return evaluate_files(CASE_DIR, {name: text.encode() for name, text in files.items()})


def foreign_json(text: str) -> str:
    records = [
        {
            "run": row["batch_id"],
            "titre_mg_l": round(float(row["titre_g_l"]) * 1000),
            "duration": float(row["duration_h"]),
            "productivity": float(row["productivity_g_l_h"]),
        }
        for row in table(text)
    ]
    lines = ",\n  ".join(json.dumps(record) for record in records)
    return f"[\n  {lines}\n]\n"


def foreign_csv(text: str) -> str:
    columns = ("final_titre", "fermentation", "productivity_mg_l_h", "run_hours")
    rows = [
        {
            "final_titre": row["titre_g_l"],
            "fermentation": row["batch_id"],
            "productivity_mg_l_h": round(float(row["productivity_g_l_h"]) * 1000.0, 1),
            "run_hours": row["duration_h"],
        }
        for row in table(text)
    ]
    return csv_text(columns, rows)


FOREIGN = {
    "greedy_full": ("forecast.json", foreign_json),
    "oracle_50": ("outcome_forecast.csv", foreign_csv),
}


def known_points(name: str) -> tuple[str, ...]:
    """Points whose answers went into a probe, in registry order."""
    if name in ("do_nothing", "literal") or name.startswith(("bypass_", "copied_", "empty_")):
        return ()
    if name == "ungated_literal":
        return ("void_batches",)
    if name.startswith("oracle_"):
        share = int(name.removeprefix("oracle_"))
        known = NESTED[: -(-share * len(NESTED) // 100)]
        return tuple(key for key in POINTS if key in known)
    if name.startswith("knock_"):
        lost = name.removeprefix("knock_").rpartition("_")[0]
        return tuple(key for key in POINTS if key != lost)
    if name == "constant_mean":
        return tuple(key for key in POINTS if key != "error_scale")
    return POINTS


def write_probe(name: str, target: Mapping[str, str], delivered: Mapping[str, str]) -> None:
    """Write one probe; `target` is the deliverable under the names the evaluator reads."""
    dialogue = DIALOGUES.get(name, Dialogue())
    evaluation = scored(target)
    if evaluation.result is None:
        raise ValueError(f"{name}: {evaluation.stderr}")
    shown = next(iter(delivered), None)
    record = {
        "name": name,
        "knows": known_points(name),
        "rounds": dialogue.rounds,
        "summary": f"The forecasts are in {shown}." if shown else "I have nothing to hand over.",
        "layout": "foreign" if name in FOREIGN else "target",
        "expect": {
            "valid": evaluation.valid,
            "score": repr(float(evaluation.result["score"])),
            "stage": evaluation.result["stage"],
        },
        "covered": dialogue.covered,
        "relevant_units": dialogue.units - dialogue.idle,
        "units": dialogue.units,
        "per_round_covered": dialogue.per_round,
    }
    folder = SEALED / "probes" / name
    write(folder / "probe.json", json_text(record))
    for file, text in delivered.items():
        write(folder / "files" / file, text)
    if delivered:
        write(folder / "files" / "NOTES.md", NOTES)


def bypasses() -> dict[str, dict[str, str]]:
    """Deliverables that try to be scored without an honest forecast."""
    best = output("reference")
    lines = best.splitlines(keepends=True)
    first = lines[1].split(",")
    perfect = json.dumps({"valid": True, "score": 1.0}) + "\n"
    return {
        "bypass_not_a_number": {TARGET: best.replace(first[1], "nan", 1)},
        "bypass_infinite": {TARGET: best.replace(first[1], "inf", 1)},
        "bypass_duplicates": {TARGET: best + "".join(lines[1:])},
        "bypass_renamed_ids": {TARGET: best.replace("F1", "G1").replace("F2", "G2")},
        "bypass_history_rows": {TARGET: best + "F1000,40.0,60.0,0.66\n"},
        "bypass_planted_evaluator": {
            "evaluator.py": f"print({perfect!r})\n",
            "reference.json": '{"raw": 1e9}\n',
            "score.json": perfect,
        },
    }


def write_probes() -> None:
    write_probe("do_nothing", {}, {})
    for path in sorted(OUTPUTS.glob("*.csv")):
        text = output(path.stem)
        file, convert = FOREIGN.get(path.stem, (TARGET, str))
        write_probe(path.stem, {TARGET: text}, {file: convert(text)})
    header = output("reference").splitlines()[0] + "\n"
    batches = (CASE_DIR / "data" / "batches.csv").read_text(encoding="utf-8")
    worthless = {"empty_table": {TARGET: header}, "copied_batches": {TARGET: batches}}
    for name, files in (worthless | bypasses()).items():
        write_probe(name, files, files)


def write_mutants() -> None:
    rows = table(output("reference"))
    void = next(
        row["batch_id"]
        for row in table((SEALED / "truth" / "outcomes.csv").read_text(encoding="utf-8"))
        if row["void"] == "1"
    )
    knocked = {key: table(output(f"knock_{key}_1")) for key in POINTS if key != "void_batches"}
    for mutant in mutants(rows, knocked, void):
        write(SEALED / "mutants" / f"{mutant.name}.json", mutant_text(mutant))


def main() -> None:
    clear()
    revendor(SEALED / "evaluator.py")
    write_world()
    write_reference()
    write_probes()
    write_mutants()
    write_calibration(SEALED)
    write_manifest(CASE_DIR)


if __name__ == "__main__":
    main()
