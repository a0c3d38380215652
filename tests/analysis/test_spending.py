"""Cost views: sums by hand, what was lost, what is estimated, what is unknown."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fde_ray.analysis.cost_page import MOST_ROWS, cost_html
from fde_ray.analysis.spending import (
    BYS,
    By,
    Session,
    Spending,
    SpendingRun,
    SpendSummary,
    lost_subjects,
    summarised,
)
from fde_ray.analysis.spending_display import dollars, money
from fde_ray.analysis.spending_files import compute_by_run_csv, cost_by_run_csv, summary_json
from fde_ray.analysis.tallies import Tally, merged, tally_of
from fde_ray.model.ledgers import LedgerLine

GRADE, OTHER_GRADE = "g" * 32, "h" * 32
ATTACK = "<script>alert(1)</script>\x1b[31m\u202e"


def run(name: str, system: str = "good", case: str = "017", *, valid: bool = True) -> SpendingRun:
    return SpendingRun(name, GRADE, case, "interact_req", system, 1, valid)


def line(n: int, subject: str, cost: int | None, **more: Any) -> LedgerLine:
    run_id, _, rest = subject.partition("/")
    fields: dict[str, Any] = {
        "call_id": f"c{n}",
        "try_no": 1,
        "subject": subject,
        "run_id": run_id.partition(".")[0],
        "grade_id": rest.partition("/")[0] or None,
        "role": "extractor" if rest else "agent",
        "model": "acme/big",
        "price_hash": "p" * 64,
        "started_at": float(n),
        "finished_at": n + 1.0,
        "state": "finished",
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "source": "provider"},
        "cost_nanousd": cost,
        "cost_reason": None if cost is not None else "no price for 'acme/big'",
    }
    return LedgerLine.model_validate(fields | more)


def session(subject: str, cost: int | None = 0, **more: Any) -> Session:
    run_id, _, rest = subject.partition("/")
    grade, _, route = rest.partition("/")
    place = route.partition(".")[0]
    return Session(
        subject=subject,
        run_id=run_id.partition(".")[0],
        grade_id=grade or None,
        route=int(place) if place.isdigit() else None,
        role="score" if place == "score" else "extract" if rest else "solve",
        number=int(subject.rpartition(".")[2]),
        model="acme/big",
        failure=more.get("failure"),
        machine="local",
        began_at=1.0,
        ended_at=3.0,
        end_source="session",
        seconds=2.0,
        cpu=1.0,
        memory_bytes=1 << 30,
        rate="",
        nanousd=cost,
        reason="" if cost is not None else "the profile gives this machine no rate",
    )


RUNS = [run("a"), run("b", "bad", valid=False), run("c", "good", "036")]
ESTIMATED = {"prompt_tokens": 90, "completion_tokens": 9, "source": "estimated"}
LINES = [
    line(1, "a.1", 1000),
    line(2, "a.2", 500),
    line(3, "a.2", 7, usage=ESTIMATED, state="ambiguous"),
    line(4, f"a/{GRADE}/0.1", 30),
    line(5, f"a/{GRADE}/0.2", 40),
    line(6, f"a/{OTHER_GRADE}/0.1", 99_999),
    line(7, "a.2", 5, role="judge", grade_id=GRADE, model="acme/small"),
    line(8, "b.1", 200),
    line(9, "c.1", 60, state="failed", cost_nanousd=0),
    line(10, "c.1", None, state="started", usage=None, finished_at=None, cost_reason=None),
    line(11, "zzz.1", 77_777),
]
SESSIONS = [
    session("a.1", 10, failure="shim_lost"),
    session("a.2", 20),
    session(f"a/{GRADE}/0.1", 1),
    session(f"a/{GRADE}/0.2", 2),
    session(f"a/{OTHER_GRADE}/0.1", 5000),
    session("b.1", 40, failure="agent_error"),
    session("c.1", 80),
]


def spending(lines: list[LedgerLine] | None = None, **more: Any) -> Spending:
    tallies = [tally_of(one) for one in (LINES if lines is None else lines)]
    return Spending("demo", RUNS, tallies, more.get("sessions", SESSIONS))


def by(kind: By, found: Spending | None = None) -> dict[tuple[Any, ...], Any]:
    summary = summarised(found or spending(), kind)
    return {tuple(group.key.values()): group for group in summary.groups}


def test_the_total_is_that_of_the_wanted_runs_and_grades() -> None:
    total = summarised(spending()).total
    assert total.llm.nanousd.value == 1000 + 500 + 7 + 30 + 40 + 5 + 200
    assert total.compute.nanousd.value == 10 + 20 + 1 + 2 + 40 + 80
    assert (total.llm.calls, total.llm.failed, total.llm.open) == (7, 1, 1)
    assert (total.runs, total.valid) == (3, 2)


@pytest.mark.parametrize("kind", BYS)
def test_the_groups_of_every_view_add_up_to_the_total(kind: By) -> None:
    summary = summarised(spending(), kind)
    assert sum(g.llm.nanousd.known for g in summary.groups) == summary.total.llm.nanousd.known
    assert sum(g.llm.calls for g in summary.groups) == summary.total.llm.calls
    compute = [group.compute for group in summary.groups]
    assert sum(one.nanousd.known for one in compute) == summary.total.compute.nanousd.known
    assert sum(one.sessions for one in compute) == summary.total.compute.sessions


def test_roles_and_models_are_told_apart() -> None:
    roles = by("role")
    assert [key[0] for key in roles] == ["agent", "extractor", "judge"]
    assert roles["judge",].llm.nanousd.value == 5
    assert roles["extractor",].compute.nanousd.value == 3
    assert roles["agent",].valid is None
    assert by("model")["acme/small", "judge"].llm.calls == 1


def test_systems_tell_what_a_valid_score_costs() -> None:
    systems = by("system")
    good, bad = systems["good", "interact_req"], systems["bad", "interact_req"]
    assert (good.runs, good.valid) == (2, 2)
    assert good.llm_nanousd_per_valid == 1582 / 2
    assert good.compute_nanousd_per_valid == 113 / 2
    assert (bad.valid, bad.llm_nanousd_per_valid) == (0, None)


def test_a_run_without_any_call_is_still_a_run() -> None:
    runs = by("run", spending([]))
    assert len(runs) == 3
    assert all(group.llm.calls == 0 for group in runs.values())


def test_attempts_that_another_replaced_or_that_we_lost_are_wasted() -> None:
    assert lost_subjects(SESSIONS) == {"a.1", f"a/{GRADE}/0.1"}
    only = [session("c.1", failure="shim_lost")]
    assert lost_subjects(only) == {"c.1"}
    assert lost_subjects([session("c.1", failure="provider_unavailable")]) == {"c.1"}
    for graded in ("agent_error", "time_limit", "budget_exhausted", "cancelled"):
        assert lost_subjects([session("c.1", failure=graded)]) == frozenset()
    assert lost_subjects([session(f"c/{GRADE}/1.1", failure="extractor_error")]) == frozenset()
    boxes = [session(f"c/{GRADE}/score.{n}") for n in (1, 2)]
    assert lost_subjects(boxes) == frozenset(), "the first had nothing more to do"
    broken = session(f"c/{GRADE}/score.3", failure="shim_lost")
    assert lost_subjects([*boxes, broken]) == {broken.subject}
    total = summarised(spending()).total
    assert total.llm.lost_nanousd.value == 1000 + 30
    assert total.compute.lost_nanousd.value == 10 + 1
    assert by("attempt")["a.1", "good", "interact_req", "017"].llm.lost_nanousd.value == 1000


def test_the_estimated_share_is_told_and_warned_of_above_one_percent() -> None:
    summary = summarised(spending())
    assert summary.estimated_share == pytest.approx(7 / 1782)
    assert not any("estimated" in warning for warning in summary.warnings)
    much = summarised(spending([*LINES, line(20, "b.1", 18, usage=ESTIMATED)]))
    assert much.estimated_share == pytest.approx(25 / 1800)
    assert any("1.4 % of the known cost is estimated" in text for text in much.warnings)
    assert summarised(spending([])).estimated_share is None


def test_a_call_of_unknown_cost_makes_every_sum_that_holds_it_a_lower_bound() -> None:
    found = spending([*LINES, line(20, "b.1", None), line(21, "b.1", None)])
    summary = summarised(found, "system")
    assert summary.total.llm.nanousd.value is None
    assert (summary.total.llm.nanousd.known, summary.total.llm.nanousd.unknown) == (1782, 2)
    assert summary.total.llm_nanousd_per_valid is None
    good, bad = summary.groups[1], summary.groups[0]
    assert good.llm.nanousd.value == 1582
    assert money(bad.llm.nanousd) == "≥ $0.0000002 (2 unknown)"
    (unpriced,) = summary.unpriced
    assert (unpriced.model, unpriced.calls) == ("acme/big", 2)
    assert any("2 calls is unknown" in warning for warning in summary.warnings)


def test_tokens_that_do_not_reconcile_are_counted_as_unknown() -> None:
    odd = {"prompt_tokens": 5, "completion_tokens": 1, "cached_tokens": 9, "source": "provider"}
    total = summarised(spending([line(1, "a.1", None, usage=odd), line(2, "a.1", 3)])).total
    assert (total.llm.uncounted, total.llm.tokens["input"]) == (1, 100)


def test_compute_of_unknown_cost_says_why() -> None:
    found = spending(sessions=[session("a.1", None), session("c.1", 5)])
    summary = summarised(found)
    assert summary.total.compute.nanousd.value is None
    assert summary.total.compute.nanousd.known == 5
    reason = "the profile gives this machine no rate"
    assert summary.total.compute.unknown_reasons == (reason,)
    assert f"Compute is unknown: {reason}." in cost_html(found)


def test_small_amounts_are_shown_with_the_digits_that_they_need() -> None:
    assert [dollars(n) for n in (0, 1, 1500, 10**6, 10**9, 12_345_678_900_000)] == [
        "$0", "$0.000000001", "$0.0000015", "$0.0010", "$1.0000", "$12,345.6789"
    ]  # fmt: skip


def test_merging_keeps_every_sum() -> None:
    tallies = [tally_of(one) for one in LINES * 3]
    found = Spending("demo", RUNS, merged(tallies), SESSIONS)
    assert summarised(found) == summarised(spending(LINES * 3))
    assert len(merged(tallies)) == len(LINES)


def shuffled(seed: int) -> Spending:
    rng = random.Random(seed)
    lines, sessions, runs = LINES[:], SESSIONS[:], RUNS[:]
    for one in (lines, sessions, runs):
        rng.shuffle(one)
    return Spending("demo", runs, [tally_of(one) for one in lines], sessions)


def files(found: Spending) -> tuple[str, ...]:
    summaries = tuple(summary_json(summarised(found, kind)) for kind in BYS)
    return cost_by_run_csv(found), compute_by_run_csv(found), cost_html(found), *summaries


def test_equal_facts_in_any_order_give_the_same_bytes() -> None:
    assert len({files(shuffled(seed)) for seed in range(5)}) == 1


PROGRAM = """
import hashlib, sys
from tests.analysis.test_spending import LINES, files, shuffled
from fde_ray.metering.ledger_files import ledger_bytes
import random
seed = int(sys.argv[1])
lines = LINES[:]
random.Random(seed).shuffle(lines)
text = "".join(files(shuffled(seed))).encode() + ledger_bytes(lines)
print(hashlib.sha256(text).hexdigest())
"""


def test_check_7_two_machines_write_the_same_bytes() -> None:
    """Other hash seeds, time zones and locales stand for the machines; neither asks a network."""
    machines = (
        {"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo", "LC_ALL": "C"},
        {"PYTHONHASHSEED": "2", "TZ": "America/New_York", "LC_ALL": "C.UTF-8"},
    )
    root = Path(__file__).parents[2]
    found = set()
    for seed, machine in enumerate(machines):
        environ = {**os.environ, "PYTHONPATH": str(root), **machine}
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(seed)],
            env=environ, cwd=root, capture_output=True, text=True, check=True,
        )  # fmt: skip
        found.add(ended.stdout)
    assert len(found) == 1


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_files_hold_what_the_views_add_up() -> None:
    calls = rows_of(cost_by_run_csv(spending()))
    total = summarised(spending()).total
    owed = [row for row in calls if row["state"] in ("finished", "ambiguous")]
    assert sum(int(row["nanousd"]) for row in owed) == total.llm.nanousd.value
    assert {row["attempt"] for row in calls if row["is_lost"] == "true"} == {
        "a.1", f"a/{GRADE}/0.1"
    }  # fmt: skip
    pods = rows_of(compute_by_run_csv(spending()))
    assert sum(int(row["nanousd"]) for row in pods) == total.compute.nanousd.value


def test_unknown_is_an_empty_field_and_no_rows_leave_the_header() -> None:
    (row,) = rows_of(cost_by_run_csv(spending([line(1, "a.1", None)])))
    assert (row["nanousd"], row["unpriced"]) == ("", "no price for 'acme/big'")
    for text in (cost_by_run_csv(spending([])), compute_by_run_csv(spending(sessions=[]))):
        assert text.startswith("run_id,grade_id,attempt,")
        assert text.count("\n") == 1


def test_the_summary_can_be_read_again() -> None:
    summary = summarised(spending(), "case")
    assert SpendSummary.model_validate(json.loads(summary_json(summary))) == summary


def test_the_page_holds_the_numbers_of_the_summary_and_nothing_active() -> None:
    page = cost_html(spending([*LINES, line(30, "b.1", None, model=ATTACK)]))
    assert "script" not in page.replace("&lt;script&gt;", "").replace("&lt;/script&gt;", "")
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    for text in ("≥ $0.00000178 (1 unknown)", "$0.00000103", "2 of 3 runs", "0.39 %"):
        assert text in page, text


def test_a_page_of_many_runs_is_cut_and_says_so() -> None:
    runs = [run(f"r{n}") for n in range(MOST_ROWS + 7)]
    page = cost_html(Spending("demo", runs, [], []))
    assert "7 more are in the CSV files" in page
    assert page.count("<tr>") < 2 * MOST_ROWS


def test_ten_thousand_runs_are_added_up_quickly() -> None:
    runs = [run(f"r{n}", f"s{n % 20}", f"{n % 49:03d}") for n in range(10_000)]
    lines = [tally_of(line(n, f"r{n}.1", n)) for n in range(10_000)]
    found: list[Tally] = lines * 3
    summary = summarised(Spending("demo", runs, found, []), "run")
    assert len(summary.groups) == 10_000
    assert summary.total.llm.nanousd.value == 3 * sum(range(10_000))
