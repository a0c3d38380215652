"""Every object has one key, and the keys are those of the architecture's layout."""

from __future__ import annotations

import pytest

from fde_ray.store.objects import layout
from fde_ray.store.objects.keys import checked_key

RUN, GRADE, SHA = "ab" + "1" * 30, "c" * 32, "d" * 64
SOLVE, TRY = f"{RUN}.2", f"{RUN}/{GRADE}/3.1"
BASE = f"t/runs/ab/{RUN}"

KEYS = {
    layout.start_key("t", SOLVE): f"{BASE}/attempts/2/start.json",
    layout.gate_key("t", SOLVE): f"{BASE}/attempts/2/gate.json",
    layout.decoys_key("t", SOLVE): f"{BASE}/attempts/2/decoys.json",
    layout.end_key("t", SOLVE): f"{BASE}/attempts/2/end.json",
    layout.events_key("t", SOLVE, 7): f"{BASE}/attempts/2/events/7.jsonl.gz",
    layout.dialogue_key("t", SOLVE): f"{BASE}/attempts/2/dialogue.jsonl",
    layout.calls_key("t", SOLVE, "r0", 1): f"{BASE}/attempts/2/calls/r0-000001.jsonl.gz",
    layout.part_key("t", SOLVE, "final", 0, SHA): (
        f"{BASE}/attempts/2/workspace/final/parts/00000-{SHA}"
    ),
    layout.manifest_key("t", SOLVE, "final"): f"{BASE}/attempts/2/workspace/final/manifest.json",
    layout.manifest_key("t", TRY, "final"): (
        f"{BASE}/grades/{GRADE}/3.1/workspace/final/manifest.json"
    ),
    layout.extraction_key("t", RUN, GRADE, 3, SHA, "x.csv"): (
        f"{BASE}/grades/{GRADE}/extraction/3/{SHA}/x.csv"
    ),
    layout.judging_key("t", RUN, GRADE, 4, SHA): f"{BASE}/grades/{GRADE}/judging/4/{SHA}.json",
    layout.result_key("t", RUN, GRADE): f"{BASE}/grades/{GRADE}/result.json",
    layout.spec_key("t", "s", 1): "t/sweeps/s/specs/1.json",
    layout.mark_key("t", "s", RUN, GRADE): f"t/sweeps/s/marks/ab/{RUN}.{GRADE}.json",
    layout.case_key("t", "sealed", SHA): f"t/cases/sealed/{SHA}",
}


@pytest.mark.parametrize(("key", "expected"), KEYS.items())
def test_key_is_where_the_layout_puts_it(key: str, expected: str) -> None:
    assert checked_key(key) == expected


def test_mark_names_its_run_and_grade() -> None:
    assert layout.parse_mark(layout.mark_key("t", "s", RUN, GRADE)) == (RUN, GRADE)


@pytest.mark.parametrize(
    "key", ["", "x", "t/sweeps/s/marks/ab/x.json", f"m/zz/{RUN}.{GRADE}.json", f"m/ab/{RUN}.json"]
)
def test_other_names_are_no_marks(key: str) -> None:
    assert layout.parse_mark(key) is None
