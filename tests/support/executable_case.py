"""Case 914, a small executable case for tests: a program plans the refills of a shelf.

`build` writes the whole package. Three hidden instances; three points: how much the shelf holds,
how much of it is for show, and what a delivery costs. `policy` writes programs that know them, or
take something else for granted.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fde_ray.cases.authoring.mutants import Mutant, mutant_text
from fde_ray.cases.authoring.probe_runs import evaluate_files
from fde_ray.cases.authoring.program_runs import answered_files
from fde_ray.cases.authoring.strict_reader import tree_hash
from fde_ray.cases.authoring.vendoring import source_block
from fde_ray.cases.authoring.writers import json_text, write, write_manifest
from fde_ray.cases.package import load_case
from fde_ray.cases.records import Case
from tests.support.executable_texts import (
    EVALUATOR,
    GENERATOR,
    INFORMATION,
    INSTRUCTION,
    POLICY,
    REQUEST_TOML,
)

FOLDER = "914_stock_refill"
CASE_ID = "914"
ENTRY, HELPER, ALIAS = "policy.py", "stock.py", "refill_policy.py"
SHELF, SHOWN, FEE = 16, 2, 30
NAIVE_SHELF, NAIVE_SHOWN, NAIVE_FEE = 60, 0, 0
POINTS = ("shelf_capacity", "show_pieces", "delivery_fee")
CANARY = "5f0c8f5e-8a55-4b5e-9c0b-1f6f3f1f7a14"
DEMANDS: Mapping[str, tuple[int, ...]] = {
    "first_shop.json": (6, 4, 7, 3, 5, 8, 2, 6, 5, 4, 7, 6, 3, 5),
    "second_shop.json": (2, 9, 1, 8, 3, 7, 4, 6, 5, 5, 6, 4, 7, 3),
    "third_shop.json": (5, 5, 5, 12, 5, 5, 5, 1, 1, 1, 9, 4, 6, 8),
}


def policy(shelf: int = SHELF, shown: int = SHOWN, fee: int = FEE, style: str = "best") -> str:
    """Return a program. style: best, greedy (fills the shelf) or steady (orders every day)."""
    text: str = POLICY.format(shelf=shelf, shown=shown, fee=fee, style=style)
    return text


def with_helper() -> dict[str, bytes]:
    """Return the best program in two files, of which the entry imports the other."""
    text = policy()
    at = text.index("def main(")
    head = "import json\nimport sys\n\nfrom stock import plan\n\n\n"
    return {ENTRY: (head + text[at:]).encode(), HELPER: text[:at].encode()}


CRASHING = "raise SystemExit('no plan today')\n"
PROGRAMS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "literal": ((), policy(NAIVE_SHELF, NAIVE_SHOWN, NAIVE_FEE)),
    "ungated_literal": (POINTS[:2], policy(fee=NAIVE_FEE)),
    "knock_shelf_capacity_1": (POINTS[1:], policy(NAIVE_SHELF)),
    "knock_show_pieces_1": (("shelf_capacity", "delivery_fee"), policy(shown=NAIVE_SHOWN)),
    "knock_delivery_fee_1": (POINTS[:2], policy(fee=NAIVE_FEE)),
    "greedy_full": (POINTS, policy(style="greedy")),
    "oracle_25": (POINTS[:1], policy(SHELF, NAIVE_SHOWN, NAIVE_FEE)),
    "oracle_50": (POINTS[:2], policy(fee=NAIVE_FEE)),
    "oracle_75": (POINTS, policy()),
    "reference": (POINTS, policy()),
    "shortcut_steady": (POINTS, policy(style="steady")),
    "bypass_crash": ((), CRASHING),
    "bypass_silence": ((), "pass\n"),
    "bypass_score": ((), 'print(\'{"valid": true, "score": 1.0, "orders": []}\')\n'),
}
"""Probe -> (points that it knows, program)."""
FOREIGN = ("greedy_full", "oracle_50", "foreign_modules")
QUESTIONS = {
    "shelf_capacity": "How many pieces may lie on the shelf?",
    "show_pieces": "How many pieces are for show and never sold?",
    "delivery_fee": "What does a delivery cost?",
}


def build(parent: Path, probes: Collection[str] | None = None) -> Path:
    """Write the package below `parent` and return its folder. probes: None = all of them.

    Takes a few seconds with all probes: each program is run.
    """
    root = parent / FOLDER
    _write_request(root)
    _write_sealed(root)
    _write_reference(root)
    write_manifest(root)
    case = load_case(root)
    for name in ("do_nothing", *PROGRAMS):
        if probes is None or name in probes:
            knows, program = PROGRAMS.get(name, ((), None))
            write_probe(case, name, {} if program is None else {ENTRY: program.encode()}, knows)
    _write_mutants(case)
    write_manifest(root)
    return root


def _write_request(root: Path) -> None:
    write(root / "case.toml", REQUEST_TOML.replace("CANARY", CANARY))
    write(root / "instruction.md", INSTRUCTION)
    write(root / "authoring" / "generate.py", GENERATOR)
    write(root / "data" / "example_shop.json", instance_text((3, 5, 4, 6, 2, 5, 4)))


def instance_text(demand: Collection[int]) -> str:
    return json.dumps({"opening_stock": 10, "demand": list(demand)}) + "\n"


def _write_sealed(root: Path) -> None:
    sealed = root / "sealed"
    write(sealed / "information.md", INFORMATION)
    write(sealed / "gt.json", json_text(_gt()))
    write(sealed / "points.json", json_text(_points()))
    params = {
        "shelf_pieces": SHELF,
        "shown_pieces": SHOWN,
        "delivery_fee_cents": FEE,
        "program_instance_s": 10,
        "program_instance_mib": 256,
        "canary": CANARY,
    }
    write(sealed / "params.json", json_text(params))
    write(sealed / "submission_schema.json", json_text(_schema()))
    evaluator = EVALUATOR.replace("CANARY", CANARY).replace("# READER\n", source_block())
    write(sealed / "evaluator.py", evaluator)
    for name, demand in DEMANDS.items():
        write(sealed / "truth" / "instances" / name, instance_text(demand))
    write(sealed / "best_solution" / ENTRY, policy())


def _answers_in_information() -> dict[str, str]:
    starts = ("The shelf holds", "The last", "Every delivery")
    lines = [line for line in INFORMATION.splitlines() if line.startswith(starts)]
    return dict(zip(POINTS, lines, strict=True))


def _gt() -> dict[str, Any]:
    said = _answers_in_information()
    return {
        "shelf_capacity": {
            "requirement": "How many pieces may lie on the shelf at once.",
            "issue_type": "missing",
            "content_domain": "constraint_rule",
            "rule_source": None,
            "answer": said["shelf_capacity"],
            "triggers": [
                "How many pieces may lie on the shelf?",
                "How many pieces may lie on the shelf after a delivery?",
                "How many pieces may lie there at once?",
            ],
        },
        "show_pieces": {
            "requirement": "How many pieces are for show and never sold.",
            "issue_type": "missing",
            "content_domain": "data_semantics",
            "rule_source": None,
            "answer": said["show_pieces"],
            "triggers": [
                "How many pieces are for show and never sold?",
                "Are some pieces for show and never sold?",
                "How many are never sold?",
            ],
        },
        "delivery_fee": {
            "requirement": "What a delivery costs, however large.",
            "issue_type": "missing",
            "content_domain": "computation_convention",
            "rule_source": None,
            "answer": said["delivery_fee"],
            "triggers": [
                "What does a delivery cost?",
                "Does a delivery cost something, however large?",
                "What does each delivery cost us?",
            ],
        },
    }


def _points() -> dict[str, Any]:
    said = _answers_in_information()
    common = {"qualitative_answer": None, "quote": None}
    return {
        "shelf_capacity": {
            "param": "shelf_pieces",
            "value": SHELF,
            "alternatives": [NAIVE_SHELF],
            "naive": NAIVE_SHELF,
            "effect": "validity",
            "info_anchor": said["shelf_capacity"],
            "heading": "Business rules",
            "rule_codes": ["shelf_full"],
            "decoys": ["Who paints the shop?", "When does the shop open?"],
            "min_drop": 1.0,
            **common,
        },
        "show_pieces": {
            "param": "shown_pieces",
            "value": SHOWN,
            "alternatives": [NAIVE_SHOWN],
            "naive": NAIVE_SHOWN,
            "effect": "validity",
            "info_anchor": said["show_pieces"],
            "heading": "Business rules",
            "rule_codes": ["stock_out"],
            "decoys": ["Who counts the boxes?", "Is there a cellar?"],
            "min_drop": 1.0,
            **common,
        },
        "delivery_fee": {
            "param": "delivery_fee_cents",
            "value": FEE,
            "alternatives": [NAIVE_FEE],
            "naive": NAIVE_FEE,
            "effect": "objective",
            "info_anchor": said["delivery_fee"],
            "heading": "Computation conventions",
            "rule_codes": [],
            "decoys": ["Which lorry comes?", "Is the driver paid by the hour?"],
            "min_drop": 0.2,
            **common,
        },
    }


def _schema() -> dict[str, Any]:
    return {
        "schema": "fde_ray.submission/1",
        "files": [
            {
                "name": ENTRY,
                "format": "text",
                "row": "a program that reads one shop's JSON and prints its plan",
                "row_set": "graded",
                "sorted": False,
                "aliases": [ALIAS],
                "fields": [],
            }
        ],
    }


def _write_reference(root: Path) -> None:
    """Score the reference program against any figure, and note what it really reaches."""
    path = root / "sealed" / "reference.json"
    record = {
        "raw": 1.0,
        "quality": 1.0,
        "components": {},
        "solver": "exact dynamic programme over the stock at the end of a day",
        "seeds": [0],
        "budget": "milliseconds",
        "best_bound": None,
        "noise": 0.0,
        "scored_with": tree_hash(_scoring_entries(root / "sealed")),
    }
    write(path, json_text(record))
    write_manifest(root)
    case = load_case(root)
    run = evaluate_files(root, answered_files(case, {ENTRY: policy().encode()}))
    assert run.result is not None, run.stderr
    measured = {"raw": run.result["raw"], "components": run.result["components"]}
    write(path, json_text(record | measured))


def _scoring_entries(sealed: Path) -> list[tuple[str, bytes]]:
    names = ["evaluator.py", "params.json", "submission_schema.json"]
    names += [f"truth/instances/{name}" for name in DEMANDS]
    return [(name, (sealed / name).read_bytes()) for name in names]


def write_probe(
    case: Case, name: str, files: Mapping[str, bytes], knows: Collection[str] = ()
) -> None:
    """Add a probe that delivers `files`; the manifest of the package is then out of date."""
    run = evaluate_files(case.root, answered_files(case, files))
    assert run.result is not None, run.stderr
    score = repr(float(run.result["score"]))
    expect = {"valid": run.valid, "score": score, "stage": run.result["stage"]}
    write_probe_unseen(case, name, files, expect, knows)


def write_probe_unseen(
    case: Case,
    name: str,
    files: Mapping[str, bytes],
    expect: Mapping[str, Any],
    knows: Collection[str] = (),
) -> None:
    """Add a probe whose program is not run here: it may do harm where nothing boxes it."""
    folder = case.root / "sealed" / "probes" / name
    entry = ALIAS if name in FOREIGN else ENTRY
    asked = [key for key in POINTS if key in knows]
    record = {
        "name": name,
        "knows": asked,
        "rounds": [[QUESTIONS[key]] for key in asked],
        "summary": f"The program is {entry}." if files else "I have nothing to hand over.",
        "layout": "foreign" if name in FOREIGN else "target",
        "expect": dict(expect),
        "covered": asked,
        "relevant_units": len(asked),
        "units": len(asked),
        "per_round_covered": [[key] for key in asked],
    }
    write(folder / "probe.json", json_text(record))
    for file, content in files.items():
        write(folder / "files" / (entry if file == ENTRY else file), content.decode())


def _write_mutants(case: Case) -> None:
    answer = json.loads(answered_files(case, {ENTRY: policy().encode()})["first_shop.json"])
    for mutant in _mutants(answer["orders"]):
        write(case.root / "sealed" / "mutants" / f"{mutant.name}.json", mutant_text(mutant))


def _mutants(orders: list[int]) -> list[Mutant]:
    """Return edits of the reference's plan for the first shop, whose shelf opens with 10."""
    first = next(day for day, pieces in enumerate(orders) if pieces)
    later = next(day for day, pieces in enumerate(orders) if pieces and day > first)
    stock = 10 - sum(DEMANDS["first_shop.json"][:first])
    full = _moved(orders, later, first, SHELF - stock - orders[first])
    over = _moved(orders, later, first, SHELF - stock - orders[first] + 1)
    short = _moved(orders, first, later, 1)
    return [
        _plan("shelf_just_full", "shelf_full", "inside", (), full),
        _plan("shelf_over_full", "shelf_full", "outside", ("shelf_full",), over),
        _plan("stock_just_enough", "stock_out", "inside", (), orders),
        _plan("stock_one_short", "stock_out", "outside", ("stock_out",), short),
        _plan("orders_whole", "plan_form", "inside", (), [float(pieces) for pieces in orders]),
        _plan("orders_too_few", "plan_form", "outside", ("plan_form",), orders[:-1]),
        Mutant(
            "answer_missing",
            "no_answer",
            "outside",
            ("no_answer",),
            ({"op": "remove", "file": "first_shop.json"},),
        ),
        Mutant(
            "answer_from_another_text",
            "no_answer",
            "inside",
            (),
            ({"op": "replace", "file": ENTRY, "old": "import sys", "new": "import  sys"},),
        ),
        _plan("piece_too_many", "delivery_fee", "neutral", (), [*orders[:-1], orders[-1] + 1]),
    ]


def _moved(orders: list[int], source: int, target: int, pieces: int) -> list[int]:
    """Return the plan with pieces ordered on another day; days beyond the source lend the rest."""
    changed = list(orders)
    changed[target] += pieces
    for day in range(source, len(orders)):
        taken = min(pieces, changed[day]) if day != target else 0
        changed[day] -= taken
        pieces -= taken
    return changed


def _plan(name: str, code: str, side: Any, codes: tuple[str, ...], orders: list[Any]) -> Mutant:
    text = json.dumps({"orders": orders})
    edit = {"op": "text", "file": "first_shop.json", "text": text}
    return Mutant(name, code, side, codes, (edit,))
