"""Ledgers in files, and what their calls would have cost by another table."""

from __future__ import annotations

import gzip
import json
import tempfile
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fde_ray.metering.ledger_files import MOST_BYTES, ledger_bytes, lines_in, skipped_in
from fde_ray.metering.prices import PriceTable
from fde_ray.metering.repricing import by_model, cost_by, repriced
from fde_ray.model.errors import SpecError, UserError
from fde_ray.model.ledgers import LedgerLine

CHANGE = datetime.fromisoformat("2026-10-01T00:00:00Z").timestamp()
ROW: dict[str, Any] = {
    "call_id": "c1",
    "try_no": 1,
    "subject": "r.1",
    "run_id": "r",
    "role": "agent",
    "model": "acme/big",
    "price_hash": "old",
    "started_at": CHANGE + 10.0,
    "finished_at": CHANGE + 20.0,
    "state": "finished",
    "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "source": "provider"},
    "cost_nanousd": 1,
}


def line(**more: Any) -> LedgerLine:
    return LedgerLine.model_validate(ROW | more)


def table(**models: Any) -> PriceTable:
    return PriceTable.model_validate({"version": "new", "currency": "USD", "models": models})


def rates(given: str, taken: str) -> dict[str, Any]:
    return {"per_million": {"input": given, "output": taken}, "source": "page"}


NEW = table(
    **{
        "acme/big": {
            "dated": [rates("1", "10"), {"effective_from": "2026-10-01", **rates("2", "20")}]
        },
        "acme/own": {"free": True, "reason": "own machine"},
    }
)


@pytest.mark.parametrize(
    ("changes", "nanousd", "reason"),
    [
        ({}, 4_000_000, "priced"),
        ({"finished_at": CHANGE - 1, "started_at": CHANGE - 9}, 2_000_000, "priced"),
        ({"finished_at": CHANGE, "started_at": CHANGE - 9}, 4_000_000, "priced"),
        ({"finished_at": None, "state": "ambiguous"}, 4_000_000, "priced"),
        ({"model": "acme/own"}, 0, "free: own machine"),
        ({"model": "acme/new"}, None, "no price for 'acme/new'"),
        ({"usage": None, "state": "ambiguous"}, None, "no usage is known"),
        ({"state": "failed"}, 0, "nothing is owed"),
        ({"state": "started", "finished_at": None}, None, "the call has not ended"),
        ({"model": "offline/x", "offline": True}, 0, "offline"),
        (
            {"usage": {"prompt_tokens": 9, "completion_tokens": 9, "source": "offline"}},
            9 * 2000 + 9 * 20_000,
            "priced",
        ),
    ],
)
def test_a_row_costs_by_the_table_at_its_own_time(
    changes: dict[str, Any], nanousd: int | None, reason: str
) -> None:
    assert cost_by(NEW, line(**changes)) == (nanousd, reason)


def test_sums_by_model_leave_the_unknown_out_and_count_it() -> None:
    lines = [
        line(),
        line(call_id="c2", cost_nanousd=None),
        line(call_id="c3", model="acme/new", cost_nanousd=5),
        line(call_id="c4", state="failed"),
    ]
    big, new = by_model(repriced(lines, NEW))
    assert (big.calls, big.was_nanousd, big.was_unpriced) == (2, 1, 1)
    assert (big.nanousd, big.unpriced, big.change_nanousd) == (8_000_000, 0, None)
    assert (new.model, new.nanousd, new.unpriced, new.was_nanousd) == ("acme/new", 0, 1, 5)
    assert by_model(repriced([line(cost_nanousd=4_000_005)], NEW))[0].change_nanousd == -5


def test_repricing_by_the_table_of_a_row_gives_what_the_row_says() -> None:
    for usage in ({"prompt_tokens": 7, "completion_tokens": 3}, {"prompt_tokens": 0}):
        one = line(usage={"completion_tokens": 0, "source": "provider"} | usage)
        cost = NEW.cost(one.model, one.usage, one.finished_at)  # type: ignore[arg-type]
        assert cost_by(NEW, one) == cost


def test_a_ledger_is_written_and_read_again_in_one_order(tmp_path: Path) -> None:
    lines = [line(call_id=f"c{n}", started_at=float(n % 3)) for n in range(10)]
    (tmp_path / "ledger.jsonl").write_bytes(ledger_bytes(lines))
    assert lines_in(tmp_path / "ledger.jsonl") == sorted(lines, key=lambda one: one.place)
    assert ledger_bytes(lines) == ledger_bytes(reversed(lines))


def test_a_pulled_folder_gives_each_row_once_and_its_latest_state(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    calls.mkdir()
    open_row = {**ROW, "state": "started", "finished_at": None, "usage": None}
    parts = {"r.1.a-000000.jsonl.gz": [open_row], "r.1.b-000001.jsonl.gz": [ROW, ROW]}
    for name, rows in parts.items():
        text = "".join(json.dumps({**row, "new_column": 1}) + "\n" for row in rows)
        (calls / name).write_bytes(gzip.compress(text.encode()))
    (calls / "notes.txt").write_text("not a ledger")
    for place in (tmp_path, calls):
        (found,) = lines_in(place)
        assert found.state == "finished"


def test_other_rows_in_a_folder_are_no_ledger_and_are_told(tmp_path: Path) -> None:
    row = json.dumps(ROW) + "\n"
    for name in ("ledger.jsonl", "r.1.a-000000.jsonl", "all-000000.jsonl"):
        (tmp_path / name).write_text(row)
    for name in ("repriced.jsonl", "dialogue.jsonl", "notes-1.jsonl", "a-000000.jsonl.bak"):
        (tmp_path / name).write_text("{}\n")
    assert [one.key for one in lines_in(tmp_path)] == [LedgerLine.model_validate(ROW).key]
    found = [path.name for path in skipped_in(tmp_path)]
    assert found == ["dialogue.jsonl", "notes-1.jsonl", "repriced.jsonl"]
    assert skipped_in(tmp_path / "repriced.jsonl") == []
    for name in ("ledger.jsonl", "r.1.a-000000.jsonl", "all-000000.jsonl"):
        (tmp_path / name).unlink()
    with pytest.raises(UserError, match="holds no ledger"):
        lines_in(tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"{", "JSON"),
        (b"[]", "JSON"),
        (b"\xff\xfe", "JSON"),
        (b'{"call_id": "c"}', "try_no"),
        (json.dumps({**ROW, "cost_nanousd": -1}).encode(), "cost_nanousd"),
        (json.dumps({**ROW, "state": "paid"}).encode(), "state"),
        (json.dumps({**ROW, "started_at": 1e400}).encode(), "JSON|started_at"),
        (json.dumps({**ROW, "started_at": 1e300}).encode(), "started_at"),
        (json.dumps({**ROW, "finished_at": -1e300}).encode(), "finished_at"),
        (json.dumps({**ROW, "usage": {"prompt_tokens": -1}}).encode(), "usage.prompt_tokens"),
        (json.dumps({**ROW, "call_id": "x" * 10_000}).encode(), "call_id"),
        (b"x" * (MOST_BYTES + 1), "longer than"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_row_that_is_none_is_named_with_its_line(tmp_path: Path, text: bytes, says: str) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(json.dumps(ROW).encode() + b"\n" + text + b"\n")
    with pytest.raises(SpecError, match=says) as caught:
        lines_in(path)
    assert caught.value.line == 2


def test_an_empty_ledger_is_no_fault_and_a_missing_one_is(tmp_path: Path) -> None:
    (tmp_path / "ledger.jsonl").write_bytes(b"")
    assert lines_in(tmp_path / "ledger.jsonl") == []
    with pytest.raises(UserError, match="no such file"):
        lines_in(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match="results pull --only calls"):
        lines_in(empty)


@pytest.mark.parametrize("spoil", ["cut", "plain", "garbage"])
def test_gzip_that_is_spoilt_is_told(tmp_path: Path, spoil: str) -> None:
    whole = gzip.compress((json.dumps(ROW) + "\n").encode() * 100)
    data = {"cut": whole[:-20], "plain": b"plain text", "garbage": whole[:20] + b"\0" * 80}[spoil]
    path = tmp_path / "l.jsonl.gz"
    path.write_bytes(data)
    with pytest.raises(SpecError):
        lines_in(path)


def test_a_small_file_that_unpacks_to_much_is_refused_early(tmp_path: Path) -> None:
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(gzip.compress(b"0" * 50_000_000))
    with pytest.raises(SpecError, match="longer than"):
        lines_in(path)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_whatever_a_file_holds_is_read_or_refused(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "l.jsonl"
        path.write_bytes(data)
        with suppress(SpecError):
            lines_in(path)
