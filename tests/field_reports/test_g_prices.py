"""G01, G02, G05 to G09, G11 and G22 of the field reports: prices, sums, and what counts them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fde_ray.analysis.spending import Spending, SpendingRun, summarised
from fde_ray.analysis.spending_display import money
from fde_ray.analysis.tallies import tally_of
from fde_ray.metering import metrics as metrics_module
from fde_ray.metering.ledger import MeteredChat
from fde_ray.metering.metrics import CallMetrics, WatchedLedger
from fde_ray.metering.prices import PriceTable, load_prices
from fde_ray.model.chat import Usage
from fde_ray.model.errors import ProviderError, SpecError
from fde_ray.model.failures import Fault
from fde_ray.model.ledgers import LedgerLine
from fde_ray.store.runs import RunStore
from tests.gateway.planes import FakeModel
from tests.metering.test_ledger import BILL, PRICES, RUN, request
from tests.store.builders import ManualClock

ROOT = Path(__file__).parents[2]
RATES = {
    "input": "3.00",
    "output": "15.00",
    "cache_read": "0.30",
    "cache_write_5m": "3.75",
    "cache_write_1h": "6.00",
}


def table(per_million: dict[str, str] | None = None, **more: Any) -> PriceTable:
    price = {"per_million": RATES if per_million is None else per_million, "source": "page", **more}
    return PriceTable.model_validate({"version": "v", "currency": "USD", "models": {"m": price}})


def usage(prompt: int, completion: int = 0, **more: Any) -> Usage:
    return Usage.model_validate(
        {"prompt_tokens": prompt, "completion_tokens": completion, "source": "provider", **more}
    )


def cost(prices: PriceTable, used: Usage) -> int | None:
    return prices.cost("m", used, 1_796_000_000.0).nanousd


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RunStore]:
    async with RunStore(tmp_path / "runs.db", ManualClock(), busy_timeout_s=2) as opened:
        yield opened


@pytest.mark.parametrize(
    "model",
    ["anthropic/claude-foo-9", "gemini/gemini-9-pro", "groq/unknown-x", "openai/gpt-4o-2099-01-01"],
)
async def test_g01_a_model_without_a_price_costs_an_unknown_amount_and_is_not_called(
    model: str, store: RunStore
) -> None:
    shipped, upstream = load_prices(), FakeModel()
    found = shipped.cost(model, usage(10, 10))
    assert found.nanousd is None
    assert "no price" in found.reason
    assert shipped.bound(model, 10, 10).nanousd is None
    chat = MeteredChat(upstream, store, shipped, ManualClock(), random.Random(1))
    for call_id, budget in (("c1", None), ("c2", 10**12)):
        with pytest.raises(ProviderError, match="no price") as caught:
            await chat.complete(request(model=model), BILL, call_id, budget_nanousd=budget)
        assert caught.value.rule.fault is Fault.OURS
    assert (upstream.sent, await store.calls_of(RUN)) == ([], [])


@pytest.mark.parametrize(
    "per_million",
    [{}, {"input": "3"}, {"input": "3", "output": "-15"}, {"input": "3", "output": "0"}],
    ids=["none", "half", "negative", "zero"],
)
def test_g01_a_table_that_prices_half_a_model_is_refused(
    per_million: dict[str, str], tmp_path: Path
) -> None:

    price = {"per_million": per_million, "source": "page"}
    path = tmp_path / "prices.yaml"
    path.write_text(yaml.safe_dump({"version": "v", "currency": "USD", "models": {"m": price}}))
    with pytest.raises(SpecError):
        load_prices(path)


WORKER = """
import socket, sys
if sys.argv[1] == "blocked":
    def refused(*_, **__):
        raise OSError("no network")
    socket.socket.connect = refused
    socket.create_connection = refused
    socket.getaddrinfo = refused
import fde_ray.llm.litellm_client
from fde_ray.metering.prices import load_prices
from fde_ray.model.chat import Usage
prices = load_prices()
used = Usage(prompt_tokens=12345, completion_tokens=678, source="provider")
print(prices.hash, [prices.cost(m, used, 1_796_000_000.0).nanousd for m in prices.models])
assert "litellm" not in sys.modules
"""


def test_g02_workers_with_and_without_a_network_price_alike() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", WORKER, network],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for network in ("open", "blocked")
    }
    assert len(said) == 1


async def test_g02_every_row_names_the_table_that_priced_it(store: RunStore) -> None:
    chat = MeteredChat(FakeModel(), store, PRICES, ManualClock(), random.Random(1))
    await chat.complete(request(), BILL, "c1")
    (row,) = await store.calls_of(RUN)
    assert row.price_hash == PRICES.hash


def test_g05_cached_tokens_are_charged_once() -> None:
    prices = table({"input": "1", "output": "1", "cache_read": "0.1"})
    assert cost(prices, usage(12_003, 550, cached_tokens=12_000)) == 1_753_000


def test_g06_a_ledger_with_cache_writes_and_reads_is_the_sum_of_its_parts() -> None:
    prices = table()
    written = usage(50_000, 800, cache_write_5m_tokens=48_000)
    read = usage(52_000, 900, cached_tokens=48_000, cache_write_5m_tokens=1_000)
    plain = usage(1_234, 56)
    by_hand = [
        2_000 * 3_000 + 48_000 * 3_750 + 800 * 15_000,
        3_000 * 3_000 + 48_000 * 300 + 1_000 * 3_750 + 900 * 15_000,
        1_234 * 3_000 + 56 * 15_000,
    ]
    assert [cost(prices, one) for one in (written, read, plain)] == by_hand


def test_g07_thinking_is_output_in_both_styles() -> None:
    # Both dialects are read into one meaning: the completion holds the thinking.
    apart = usage(0, 100 + 900, reasoning_tokens=900)
    inside = usage(0, 1000, reasoning_tokens=900)
    assert cost(table(), apart) == cost(table(), inside) == 1000 * 15_000
    assert cost(table(), usage(0, 1000)) == 1000 * 15_000


def test_g08_cache_writes_of_an_hour_and_of_minutes_have_their_own_rates() -> None:
    used = usage(1_000_000, cache_write_1h_tokens=600_000, cache_write_5m_tokens=400_000)
    assert cost(table(), used) == 600_000 * 6_000 + 400_000 * 3_750
    short_only = table({"input": "3", "output": "15", "cache_write_5m": "3.75"})
    assert short_only.cost("m", used) == (None, "no price for cache_write_1h")


def test_g09_the_size_of_each_prompt_chooses_its_tier() -> None:
    tiers = [
        {"prompt_tokens_over": 200_000, "input": "6.00"},
        {"prompt_tokens_over": 272_000, "input": "9.00", "output": "22.50"},
    ]
    prices = table(tiers=tiers)
    assert cost(prices, usage(199_000, 10)) == 199_000 * 3_000 + 10 * 15_000
    assert cost(prices, usage(273_000, 10)) == 273_000 * 9_000 + 10 * 22_500
    # What came from a cache counts towards the size, at the base rate that the tier leaves.
    read = usage(273_000, 0, cached_tokens=272_000)
    assert cost(prices, read) == 1_000 * 9_000 + 272_000 * 300


def line(n: int, nanousd: int | None) -> LedgerLine:
    return LedgerLine(
        call_id=f"c{n}",
        try_no=1,
        subject="r.1",
        run_id="r",
        role="agent",
        model="priced" if nanousd is not None else "unpriced",
        started_at=1.0,
        state="finished",
        usage=usage(10, 10),
        cost_nanousd=nanousd,
        cost_reason=None if nanousd is not None else "no price for 'unpriced'",
    )


def test_g11_a_partial_sum_never_looks_like_a_whole_one() -> None:
    run = SpendingRun("r", "g", "017", "hidden", "s", 1, is_valid=True)
    tallies = [tally_of(line(n, cost)) for n, cost in enumerate((10**9, 2 * 10**9, None))]
    summary = summarised(Spending("demo", [run], tallies, []))
    total = summary.total.llm.nanousd
    assert (total.value, total.known, total.unknown) == (None, 3 * 10**9, 1)
    assert money(total) == "≥ $3.0000 (1 unknown)"
    assert summary.total.llm_nanousd_per_valid is None
    assert [one.model for one in summary.unpriced] == ["unpriced"]
    assert any("lower bounds" in warning for warning in summary.warnings)


async def test_g22_a_counter_that_breaks_costs_no_row_and_no_reply(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = CallMetrics()

    def broken(_row: object) -> None:
        raise TypeError("unexpected keyword argument")

    monkeypatch.setattr(metrics, "started", broken)
    monkeypatch.setattr(metrics, "finished", broken)
    watched = WatchedLedger(store, metrics)
    chat = MeteredChat(FakeModel(), watched, PRICES, ManualClock(), random.Random(1))
    assert (await chat.complete(request(), BILL, "c1")).text == "hello 1"
    (row,) = await store.calls_of(RUN)
    assert (row.state, row.cost_nanousd) == ("finished", 7 * 10_000 + 3 * 100_000)
    assert [record.message for record in caplog.records] == ["metrics_fault"] * 2
    assert metrics_module.log.name in {record.name for record in caplog.records}
