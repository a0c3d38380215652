"""What is derived from the plans of case 017: probes with their dialogue, calibration sets."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import solve

from fde_ray.cases.authoring.writers import csv_text

KEYS = (
    "roll_warm_up",
    "roll_length_limit",
    "length_basis",
    "exposed_window",
    "promised_time",
    "gauge_measure",
)
QUESTION = {
    "roll_warm_up": "May strip width grow from one coil to the next within a roll set?",
    "roll_length_limit": "How many kilometres of strip may one roll set roll at most?",
    "length_basis": "Is length worked out from the entry gauge or the exit gauge?",
    "exposed_window": "Does the note that finish E may run anywhere still hold?",
    "promised_time": "By what hour of the promised date must a coil be loaded?",
    "gauge_measure": "Is a gauge jump counted by ratio or by difference in millimetres?",
}
IDLE = ("Do your colleagues prefer a chart?", "Who signs off the energy bill?")
VAGUE = "Anything else?"
DOUBLE = (
    "May strip width grow from one coil to the next within a roll set? "
    "And how many warm-up coils may follow in any width on fresh rolls?"
)
SYSTEM_ROUNDS: dict[str, list[list[tuple[str, str | None]]]] = {
    "do_nothing": [],
    "literal": [[(VAGUE, None)]],
    "oracle_25": [[(QUESTION[KEYS[0]], KEYS[0]), (IDLE[0], None), (QUESTION[KEYS[1]], KEYS[1])]],
    "oracle_50": [[*((QUESTION[k], k) for k in KEYS[:3]), *((text, None) for text in IDLE)]],
    "oracle_75": [
        [(QUESTION[k], k) for k in KEYS[:3]],
        [*((QUESTION[k], k) for k in KEYS[3:5]), (IDLE[1], None)],
    ],
    "greedy_full": [
        [(DOUBLE, KEYS[0]), *((QUESTION[k], k) for k in KEYS[1:4])],
        [(QUESTION[k], k) for k in KEYS[4:]],
    ],
    "reference": [[(QUESTION[k], k) for k in KEYS]],
}
PlaceSets = dict[str, tuple[list[int], set[int]]]


@dataclass(frozen=True)
class ProbeText:
    """document: probe.json; files: as the agent leaves them; target: what they normalise to."""

    document: dict[str, Any]
    files: dict[str, str]
    target: dict[str, bytes]


def unsolved_plans(model: solve.Model) -> PlaceSets:
    """Return the plans that need no search: the greedy one and the shortcuts."""
    first = solve.greedy(model)
    by_date = sorted(range(model.count), key=lambda c: (model.due[c], -model.width[c], c))
    by_width = sorted(range(model.count), key=lambda c: (-model.width[c], c))
    chunks = [by_date[start : start + 3] for start in range(0, model.count, 3)]
    falling = [c for chunk in chunks for c in sorted(chunk, key=lambda c: -model.width[c])]
    return {
        "greedy_full": (list(first.order), {i for i, c in enumerate(first.changes) if c}),
        "shortcut_fresh_rolls": (by_date, set(range(1, model.count))),
        "shortcut_short_sets": (falling, set(range(3, model.count, 3))),
        "shortcut_wide_to_narrow": (by_width, set(range(8, model.count, 8))),
    }


def probes(texts: dict[str, str], registry: dict[str, Any]) -> Iterator[ProbeText]:
    """Yield every probe of the case."""
    known = {"greedy_full": 6, "oracle_25": 2, "oracle_50": 3, "oracle_75": 5, "reference": 6}
    yield _probe("do_nothing", [], SYSTEM_ROUNDS["do_nothing"], {})
    for name, rounds in SYSTEM_ROUNDS.items():
        if name != "do_nothing":
            foreign = _FOREIGN.get(name)
            yield _probe(name, KEYS[: known.get(name, 0)], rounds, _table(texts[name]), foreign)
    yield _probe("ungated_literal", ["length_basis"], [], _table(texts["ungated_literal"]))
    for key in registry:
        for number in range(1, len(registry[key]["alternatives"]) + 1):
            name = f"knock_{key}_{number}"
            yield _probe(name, [k for k in KEYS if k != key], [], _table(texts[name]))
    for name in sorted(texts):
        if name.startswith(("qualitative_", "shortcut_")):
            yield _probe(name, KEYS if name[0] == "q" else [], [], _table(texts[name]))
    yield from _bypasses(texts["reference"])


def _table(text: str) -> dict[str, str]:
    return {"schedule.csv": text}


def _probe(name: str, knows: Any, rounds: Any, target: dict[str, str], foreign: Any = None) -> Any:
    files, layout = dict(target), "target"
    delivered = "schedule.csv"
    if foreign is not None:
        delivered, text = foreign(target["schedule.csv"])
        files, layout = {delivered: text}, "foreign"
    summary = "I have not planned anything yet."
    if files:
        summary = f"The rolling order for the week is in {delivered}, one entry for each coil."
        files["NOTES.md"] = f"Plan `{name}`. The table to use is {delivered}.\n"
    seen: set[str] = set()
    fresh = []
    for questions in rounds:
        keys = [key for _, key in questions if key and key not in seen]
        seen.update(keys)
        fresh.append(keys)
    asked = [item for questions in rounds for item in questions]
    document = {
        "name": name,
        "knows": list(knows),
        "rounds": [[text for text, _ in questions] for questions in rounds],
        "summary": summary,
        "layout": layout,
        "expect": {},
        "covered": [key for key in KEYS if key in seen],
        "relevant_units": sum(text.count("?") for text, key in asked if key),
        "units": sum(text.count("?") for text, _ in asked),
        "per_round_covered": fresh,
    }
    return ProbeText(document, files, {n: text.encode() for n, text in target.items()})


def rows_of(text: str) -> list[dict[str, str]]:
    lines = [line.split(",") for line in text.splitlines()]
    return [dict(zip(lines[0], cells, strict=True)) for cells in lines[1:]]


def _as_records(text: str) -> tuple[str, str]:
    records = [
        {
            "seq": int(row["position"]),
            "coil": row["coil_id"],
            "new_rolls": int(row["roll_change"]),
            "strip_km": int(row["length_m"]) / 1000,
        }
        for row in rows_of(text)
    ]
    body = ",\n ".join(json.dumps(record) for record in records)
    return "mill_week.json", f"[\n {body}\n]\n"


def _as_other_table(text: str) -> tuple[str, str]:
    rows = [
        {
            "slot": row["position"],
            "coil_no": row["coil_id"],
            "length_km": int(row["length_m"]) / 1000,
            "fresh_rolls": row["roll_change"],
        }
        for row in rows_of(text)
    ]
    return "rolling_plan.csv", csv_text(("slot", "coil_no", "length_km", "fresh_rolls"), rows)


_FOREIGN = {"greedy_full": _as_records, "oracle_50": _as_other_table}


def _bypasses(reference: str) -> Iterator[ProbeText]:
    lines = reference.splitlines()
    head, first, last = lines[0], lines[1].split(","), lines[-1]

    def rewritten(change: Callable[[list[str]], list[str]]) -> list[str]:
        return [head, *(",".join(change(line.split(","))) for line in lines[1:])]

    bad = {
        "empty_table": [head],
        "bypass_not_a_number": rewritten(lambda c: [*c[:3], "nan"]),
        "bypass_infinite": rewritten(lambda c: ["inf", *c[1:]]),
        "bypass_blank": rewritten(lambda c: [*c[:3], ""]),
        "bypass_truth_words": rewritten(lambda c: [c[0], c[1], "false", c[3]]),
        "bypass_doubled": [*lines, last],
        "bypass_one_coil": rewritten(lambda c: [c[0], first[1], "0", c[3]]),
        "bypass_renamed": rewritten(lambda c: [c[0], c[1].lower(), *c[2:]]),
        "bypass_escape": rewritten(lambda c: [c[0], "../../best_solution", *c[2:]]),
    }
    for name, rows in bad.items():
        yield _probe(name, [], [], _table("\n".join(rows) + "\n"))
    planted = {
        "schedule.csv": lines[0] + "\n",
        "evaluator.py": 'print(\'{"valid": true, "score": 1.0}\')\n',
        "reference.json": '{"raw": 1000000000}\n',
    }
    yield _probe("bypass_planted", [], [], planted)


def calibration(
    gt: dict[str, Any], registry: dict[str, Any], texts: dict[str, str]
) -> dict[str, Any]:
    """Return the calibration documents by file name."""
    questions = [{"question": t, "points": [key]} for key in gt for t in gt[key]["triggers"]]
    questions += [{"question": t, "points": []} for p in registry.values() for t in p["decoys"]]
    answers = [{"question": gt[key]["triggers"][0], "facts": [gt[key]["answer"]]} for key in gt]
    deliverables = []
    for name, foreign in _FOREIGN.items():
        delivered, _ = foreign(texts[name])
        target = texts[name].splitlines()
        facts = {"rows": len(target) - 1, "first": target[1], "last": target[-1]}
        deliverables.append({"probe": name, "delivered": delivered, **facts})
    return {
        "questions.json": questions,
        "answers.json": answers,
        "deliverables.json": deliverables,
    }
