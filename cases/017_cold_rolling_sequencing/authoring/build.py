"""Rebuilds everything of case 017 that is not written by hand, byte for byte.

    python cases/017_cold_rolling_sequencing/authoring/build.py [--solve]

Without --solve the plans of plans.json are used again; with it they are solved anew, which takes
some minutes on two cores and must give the same plans.
"""

import argparse
import json
import shutil
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import generate
import mutations
import solve

import scripts
from fde_ray.cases.authoring import mutants, probe_runs, vendoring, writers
from fde_ray.cases.authoring.strict_reader import scoring_entries, tree_hash

AUTHORING = Path(__file__).resolve().parent
ROOT = AUTHORING.parent
SEALED = ROOT / "sealed"
PLANS = AUTHORING / "plans.json"
STEPS = 800_000
SHORT_STEPS = 100_000
SEEDS = (1, 2, 3)
NOISE_SEEDS = (1, 2, 3, 4, 5)
COLUMNS = ("position", "coil_id", "roll_change", "length_m")


def registry() -> dict[str, Any]:
    """Return points.json."""
    document: dict[str, Any] = json.loads((SEALED / "points.json").read_text(encoding="utf-8"))
    return document


def beliefs(known: set[str]) -> dict[str, Any]:
    """Return what a planner believes who knows these points and assumes the rest."""
    params: dict[str, Any] = json.loads((SEALED / "params.json").read_text(encoding="utf-8"))
    for key, point in registry().items():
        if key not in known:
            params[point["param"]] = point["naive"]
    return params


def wanted_plans() -> dict[str, dict[str, Any]]:
    """Return the beliefs of every plan that is solved, by name."""
    points = registry()
    keys = list(points)
    truth = beliefs(set(keys))
    plans = {
        "reference": truth,
        "literal": beliefs(set()),
        "ungated_literal": beliefs({"length_basis"}),
        "qualitative_half": {**truth, "gauge_weight": 0.5},
        "qualitative_double": {**truth, "gauge_weight": 2.0},
    }
    for percent in (25, 50, 75):
        plans[f"oracle_{percent}"] = beliefs(set(keys[: -(-percent * len(keys) // 100)]))
    for key, point in points.items():
        for number, value in enumerate(point["alternatives"], start=1):
            plans[f"knock_{key}_{number}"] = {**truth, point["param"]: value}
    return plans


def breaks_rules(believed: dict[str, Any]) -> bool:
    """Tell whether a plan with these beliefs is thrown away, however good it is."""
    rules = [point for point in registry().values() if point["effect"] == "validity"]
    return any(believed[point["param"]] != point["value"] for point in rules)


def solved(job: tuple[str, dict[str, Any], int]) -> tuple[str, int, solve.Plan]:
    """Run one annealing job; a plan that breaks a rule anyway gets a short one."""
    name, believed, seed = job
    steps = SHORT_STEPS if breaks_rules(believed) else STEPS
    return name, seed, solve.anneal(solve.Model(ROOT / "data", believed), seed, steps)


def solve_all() -> dict[str, Any]:
    """Return the best plan of each name, and how the reference's runs scatter."""
    jobs = []
    for name, believed in wanted_plans().items():
        seeds = NOISE_SEEDS if name == "reference" else SEEDS
        jobs += [(name, believed, seed) for seed in seeds]
    best: dict[str, solve.Plan] = {}
    runs: list[int] = []
    with ProcessPoolExecutor(2) as pool:
        for name, seed, plan in pool.map(solved, jobs):
            if name == "reference":
                runs.append(plan.points)
            if seed in SEEDS and (name not in best or plan.points < best[name].points):
                best[name] = plan
    scatter = statistics.stdev(best["reference"].points / points for points in runs)
    return {
        "noise": round(scatter, 4),
        "plans": {
            name: {
                "points": plan.points,
                "order": list(plan.order),
                "changes": [i for i, change in enumerate(plan.changes) if change],
            }
            for name, plan in best.items()
        },
    }


def schedule(model: solve.Model, order: list[int], changes: set[int]) -> str:
    """Return schedule.csv for an order and the places where fresh rolls go in."""
    rows = [
        {
            "position": place + 1,
            "coil_id": model.ids[coil],
            "roll_change": int(place in changes),
            "length_m": model.length[coil],
        }
        for place, coil in enumerate(order)
    ]
    return writers.csv_text(COLUMNS, rows)


def schedules(stored: dict[str, Any]) -> dict[str, str]:
    """Return the text of every planned schedule by name."""
    texts = {}
    for name, believed in wanted_plans().items():
        plan = stored["plans"][name]
        model = solve.Model(ROOT / "data", believed)
        texts[name] = schedule(model, plan["order"], set(plan["changes"]))
    model = solve.Model(ROOT / "data", beliefs(set(registry())))
    for name, plan in scripts.unsolved_plans(model).items():
        texts[name] = schedule(model, *plan)
    return texts


def write_reference(stored: dict[str, Any], text: str) -> None:
    """Write best_solution/ and reference.json, whose raw is what the evaluator says."""
    writers.write(SEALED / "best_solution" / "schedule.csv", text)
    document = {
        "raw": stored["plans"]["reference"]["points"],
        "quality": 1.0,
        "components": {},
        "solver": "annealing with or-opt, swap and reversal moves, best of three seeds",
        "seeds": list(SEEDS),
        "budget": f"{STEPS} steps a seed",
        "best_bound": None,
        "noise": stored["noise"],
        "scored_with": "0" * 64,
    }
    path = SEALED / "reference.json"
    writers.write(path, writers.json_text(document))
    run = probe_runs.evaluate_folder(ROOT, SEALED / "best_solution")
    if run.result is None or not run.valid or run.result["raw"] != document["raw"]:
        raise SystemExit(f"the evaluator disagrees with the solver: {run.result} {run.stderr}")
    document["components"] = dict(run.result["components"])
    entries = scoring_entries(str(SEALED), str(SEALED / "evaluator.py"))
    document["scored_with"] = tree_hash(e for e in entries if e[0] != "reference.json")
    writers.write(path, writers.json_text(document))


def write_probes(texts: dict[str, str]) -> None:
    """Write every probe with what the evaluator says to its target form."""
    shutil.rmtree(SEALED / "probes", ignore_errors=True)
    for probe in scripts.probes(texts, registry()):
        folder = SEALED / "probes" / probe.document["name"]
        run = probe_runs.evaluate_files(ROOT, probe.target)
        result = run.result or {}
        probe.document["expect"] = {
            "valid": run.valid,
            "score": repr(run.score),
            "stage": result.get("stage", "structure"),
        }
        writers.write(folder / "probe.json", writers.json_text(probe.document))
        for name, text in probe.files.items():
            writers.write(folder / "files" / name, text)
        codes = [entry["code"] for entry in result.get("violations", [])]
        print(f"{probe.document['name']:32} {run.status} {run.score:.4f} {codes}")


def write_mutants(text: str) -> None:
    """Write the mutants of the reference."""
    shutil.rmtree(SEALED / "mutants", ignore_errors=True)
    model = solve.Model(ROOT / "data", beliefs(set(registry())))
    for mutant in mutations.mutant_list(model, text):
        writers.write(SEALED / "mutants" / f"{mutant.name}.json", mutants.mutant_text(mutant))


def write_calibration(texts: dict[str, str]) -> None:
    """Write question -> point, question -> fact and messy deliverable -> target pairs."""
    folder = SEALED / "calibration"
    shutil.rmtree(folder, ignore_errors=True)
    gt = json.loads((SEALED / "gt.json").read_text(encoding="utf-8"))
    for name, document in scripts.calibration(gt, registry(), texts).items():
        writers.write(folder / name, writers.json_text(document))


def main() -> None:
    """Rebuild the case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--solve", action="store_true", help="solve the plans anew")
    arguments = parser.parse_args()
    generate.main()
    vendoring.revendor(SEALED / "evaluator.py")
    if arguments.solve:
        writers.write(PLANS, json.dumps(solve_all(), separators=(",", ":")) + "\n")
    stored = json.loads(PLANS.read_text(encoding="utf-8"))
    texts = schedules(stored)
    write_reference(stored, texts["reference"])
    write_probes(texts)
    write_mutants(texts["reference"])
    write_calibration(texts)
    writers.write_manifest(ROOT)


if __name__ == "__main__":
    main()
