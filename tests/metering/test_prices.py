"""The price table: what it refuses, and what calls cost by it."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fde_ray.metering.prices import PriceTable, load_prices
from fde_ray.model.chat import Usage
from fde_ray.model.documents import parse_document
from fde_ray.model.errors import SpecError
from fde_ray.model.specs import SweepSpec
from fde_ray.presets import NAMES, preset_text

SHIPPED = cache(load_prices)
NOW = datetime(2026, 11, 30, tzinfo=UTC).timestamp()

GOOD: dict[str, Any] = {"per_million": {"input": "3.00", "output": "15.00"}, "source": "page"}


def usage(prompt: int | None = 1000, completion: int | None = 100, **more: Any) -> Usage:
    fields = {"prompt_tokens": prompt, "completion_tokens": completion, "source": "provider"}
    return Usage.model_validate(fields | more)


def table(folder: Path, **models: Any) -> Any:
    path = folder / "prices.yaml"
    path.write_text(yaml.safe_dump({"version": "v", "currency": "USD", "models": models}))
    return load_prices(path)


def test_the_shipped_table_prices_what_it_lists_and_gives_nothing_away() -> None:
    shipped = load_prices()
    assert shipped.models
    for name, price in shipped.models.items():
        assert not any(quote.free for quote in price.quotes)
        assert all(quote.checked for quote in price.quotes)
        if price.unpriced:
            assert shipped.lack(name, NOW) == f"unpriced: {price.reason}"
            continue
        assert all(quote.source.startswith("https://") for quote in price.quotes)
        assert (shipped.cost(name, usage(), NOW).nanousd or 0) > 0
    assert len(shipped.hash) == 64


def test_every_model_of_the_shipped_sweeps_is_listed() -> None:
    shipped = load_prices()
    for name in NAMES:
        spec = parse_document(preset_text(name), SweepSpec)
        models = {s.model for s in spec.systems} | set(spec.panel.models) | {spec.customer.model}
        online = {model for model in models if not model.startswith("offline/")}
        assert [model for model in online if shipped.price_of(model) is None] == []


def test_a_cost_is_whole_nano_dollars(tmp_path: Path) -> None:
    prices = table(tmp_path, m=GOOD)
    # 1000 x $3/M + 100 x $15/M
    assert prices.cost("m", usage()).nanousd == 3_000_000 + 1_500_000
    odd = table(tmp_path, m={**GOOD, "per_million": {"input": "0.0001", "output": "0.0001"}})
    assert odd.cost("m", usage(1, 4)).nanousd == 0  # half a nano-dollar, rounded to even


def test_cached_tokens_are_charged_once_and_at_their_own_price(tmp_path: Path) -> None:
    cached = {**GOOD, "per_million": {"input": "3", "output": "15", "cache_read": "0.3"}}
    prices = table(tmp_path, m=cached, bare=GOOD)
    assert prices.cost("m", usage(cached_tokens=400)).nanousd == 1_800_000 + 120_000 + 1_500_000
    assert prices.cost("bare", usage(cached_tokens=400)).nanousd is None
    assert prices.cost("m", usage(cached_tokens=4000)).nanousd is None


def test_reasoning_is_part_of_the_output_and_may_have_a_rate_of_its_own(tmp_path: Path) -> None:
    dear = {**GOOD, "per_million": {"input": "3", "output": "15", "reasoning": "20"}}
    prices = table(tmp_path, m=GOOD, dear=dear)
    thinking = usage(reasoning_tokens=50)
    assert prices.cost("m", thinking).nanousd == 4_500_000
    assert prices.cost("dear", thinking).nanousd == 3_000_000 + 50 * 15_000 + 50 * 20_000
    assert prices.cost("m", usage(reasoning_tokens=101)) == (
        None,
        "more reasoning tokens than completion tokens",
    )


def test_each_kind_of_cache_write_has_its_own_rate(tmp_path: Path) -> None:
    rates = {"input": "3", "output": "15", "cache_write_5m": "3.75", "cache_write_1h": "6"}
    prices = table(tmp_path, m={**GOOD, "per_million": rates}, bare=GOOD)
    written = usage(1000, 0, cache_write_5m_tokens=400, cache_write_1h_tokens=500)
    assert prices.cost("m", written).nanousd == 100 * 3000 + 400 * 3750 + 500 * 6000
    assert prices.cost("bare", written) == (None, "no price for cache_write_5m")
    assert prices.cost("m", usage(800, 0, cache_write_5m_tokens=801)).nanousd is None


def test_the_bound_of_a_call_holds_for_every_use_of_a_cache_and_every_hour(tmp_path: Path) -> None:
    rates = {"input": "3", "output": "15", "cache_write_5m": "3.75", "cache_write_1h": "6"}
    night = {"hours_utc": ["01:00-04:00"], "input": "7", "output": "30"}
    prices = table(tmp_path, m={**GOOD, "per_million": rates, "windows": [night]}, bare=GOOD)
    assert prices.bound("m", 1000, 100).nanousd == 7_000_000 + 3_000_000
    assert prices.bound("bare", 1000, 100).nanousd == 4_500_000
    assert prices.bound("nobody", 1, 1).nanousd is None
    assert prices.bound("offline/x", 1, 1) == (0, "offline")


def test_the_bound_looks_at_the_prices_that_a_call_of_a_day_may_meet(tmp_path: Path) -> None:
    dear = {"input": "30", "output": "150"}
    dated = [
        {"effective_from": "2026-09-02", **GOOD},
        {"effective_from": "2027-01-01", **GOOD, "per_million": dear},
    ]
    prices = table(tmp_path, m={"dated": dated}, own={"free": True, "reason": "own machine"})

    def at(day: str) -> int | None:
        return prices.bound("m", 1000, 100, datetime.fromisoformat(day).timestamp()).nanousd

    assert at("2026-08-01T00:00Z") is None
    assert at("2026-09-01T12:00Z") == 4_500_000
    assert at("2026-11-30T00:00Z") == 4_500_000
    assert at("2026-12-31T12:00Z") == 45_000_000
    assert at("2027-03-01T00:00Z") == 45_000_000
    assert prices.bound("m", 1000, 100).nanousd == 45_000_000
    assert prices.bound("own", 1000, 100).nanousd == 0


@settings(deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(0, 10**5),
    st.integers(0, 100),
    st.integers(0, 100),
    st.integers(0, 100),
    st.floats(1.79e9, 1.81e9),
    st.integers(0, 3600),
)
def test_no_call_costs_more_than_its_bound(
    prompt: int, output: int, read: int, short: int, long: int, at: float, later: int
) -> None:
    whole = max(1, read + short + long)
    used = usage(
        prompt,
        output,
        cached_tokens=prompt * read // whole,
        cache_write_5m_tokens=prompt * short // whole,
        cache_write_1h_tokens=prompt * long // whole,
        reasoning_tokens=output // 2,
    )
    shipped = SHIPPED()
    for model in shipped.models:
        cost = shipped.cost(model, used, at + later).nanousd
        bound = shipped.bound(model, prompt, output, at).nanousd
        assert cost is None or (bound is not None and cost <= bound)


def test_the_time_of_the_call_decides_among_dated_prices(tmp_path: Path) -> None:
    dated = [
        {"effective_from": "2026-09-02", **GOOD},
        {"effective_from": "2027-01-01", **GOOD, "per_million": {"input": "6", "output": "30"}},
        {"effective_from": "2027-06-01", "unpriced": True, "reason": "not announced"},
    ]
    prices = table(tmp_path, m={"aliases": ["m-1"], "dated": dated})

    def at(day: str) -> tuple[int | None, str]:
        return prices.cost("m-1", usage(), datetime.fromisoformat(day + "Z").timestamp())

    assert at("2026-09-01T23:59:59") == (None, "no price for 'm-1' before 2026-09-02")
    assert at("2026-09-02T00:00:00") == (4_500_000, "priced")
    assert at("2026-12-31T23:59:59") == (4_500_000, "priced")
    assert at("2027-01-01T00:00:00") == (9_000_000, "priced")
    assert at("2027-06-01T00:00:00") == (None, "unpriced: not announced")
    assert prices.cost("m-1", usage()) == (9_000_000, "priced")  # no time: the dearest


def test_the_hour_of_the_call_decides_where_a_vendor_has_peak_rates(tmp_path: Path) -> None:
    peak = {"hours_utc": ["01:00-04:00", "22:00-24:00"], "days": ["mon", "fri"], "input": "6"}
    prices = table(tmp_path, m={**GOOD, "windows": [peak]})

    def at(moment: str) -> int | None:
        return prices.cost("m", usage(), datetime.fromisoformat(moment + "Z").timestamp()).nanousd

    assert at("2026-11-30T00:59:59") == 4_500_000  # a Monday
    assert at("2026-11-30T01:00:00") == 7_500_000
    assert at("2026-11-30T03:59:59") == 7_500_000
    assert at("2026-11-30T04:00:00") == 4_500_000
    assert at("2026-11-30T23:59:59") == 7_500_000
    assert at("2026-12-01T02:00:00") == 4_500_000  # a Tuesday


def test_a_table_can_be_written_down_and_read_again() -> None:
    shipped = SHIPPED()
    assert PriceTable.model_validate(shipped.jsonable()) == shipped
    changed = shipped.evolve(version="mine.1")
    assert changed.models == shipped.models
    assert changed.hash != shipped.hash


def test_the_hash_is_of_what_a_table_says(tmp_path: Path) -> None:
    plain = table(tmp_path, m=GOOD).hash
    assert plain == table(tmp_path, m={**GOOD, "free": False, "aliases": []}).hash
    assert plain != table(tmp_path, m={**GOOD, "source": "another page"}).hash
    other = {**GOOD, "per_million": {"input": "3.01", "output": "15.00"}}
    assert plain != table(tmp_path, m=other).hash


def test_a_long_prompt_takes_the_highest_tier_that_it_exceeds(tmp_path: Path) -> None:
    tiers = [
        {"prompt_tokens_over": 500, "input": "6"},
        {"prompt_tokens_over": 900, "input": "9", "output": "30"},
    ]
    prices = table(tmp_path, m={**GOOD, "tiers": tiers})
    assert prices.cost("m", usage(500)).nanousd == 1_500_000 + 1_500_000
    assert prices.cost("m", usage(501)).nanousd == 501 * 6000 + 1_500_000
    assert prices.cost("m", usage(1000)).nanousd == 9_000_000 + 3_000_000


def test_names_are_exact_and_aliases_listed(tmp_path: Path) -> None:
    prices = table(tmp_path, m={**GOOD, "aliases": ["m-2026"]})
    assert prices.cost("m-2026", usage()).nanousd is not None
    for unknown in ("m-2027", "M", "x/m", ""):
        assert prices.cost(unknown, usage()).nanousd is None
        assert "no price" in prices.cost(unknown, usage()).reason


def test_unknown_tokens_cost_an_unknown_amount(tmp_path: Path) -> None:
    prices = table(tmp_path, m=GOOD)
    assert prices.cost("m", usage(None)).nanousd is None
    assert prices.cost("m", usage(completion=None)).nanousd is None


def test_zero_is_only_for_offline_and_for_what_is_free_with_a_reason(tmp_path: Path) -> None:
    prices = table(tmp_path, own={"free": True, "reason": "own machine"})
    assert prices.cost("own", usage()) == (0, "free: own machine")
    assert prices.cost("offline/x", usage(source="offline")) == (0, "offline")
    assert prices.cost("offline/x", usage()).nanousd is None


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ({}, "input, output"),
        ({"per_million": {"input": "3"}, "source": "s"}, "input, output"),
        ({"per_million": {"input": "3", "output": "0"}, "source": "s"}, "zero is not a price"),
        ({"per_million": {"input": "-3", "output": "1"}, "source": "s"}, "greater than or equal"),
        ({"per_million": {"input": 3.0, "output": "1"}, "source": "s"}, "quoted text"),
        ({"per_million": {"input": "NaN", "output": "1"}, "source": "s"}, "finite"),
        ({"per_million": {"input": "Infinity", "output": "1"}, "source": "s"}, "finite"),
        ({"per_million": {"input": "1e99", "output": "1"}, "source": "s"}, "is no price"),
        ({"per_million": {"input": "x", "output": "1"}, "source": "s"}, "decimal"),
        ({"per_million": {"input": "1", "output": "1"}}, "source"),
        ({**GOOD, "free": True, "reason": "r"}, "no amounts"),
        ({"free": True}, "reason"),
        ({**GOOD, "discount": "9"}, "unknown key"),
        ({"per_million": {"input": "0.000003", "output": "1"}, "source": "s"}, "price per token"),
        ({"per_thousand": {"input": "3", "output": "1"}, "source": "s"}, "unknown key"),
        ({**GOOD, "effective_from": "2026-13-01"}, "write a day"),
        ({**GOOD, "dated": [GOOD]}, "every price stands there"),
        ({"dated": [{"per_million": {"input": "3"}, "source": "s"}]}, "input, output"),
        ({"dated": [{**GOOD, "effective_from": "2026-02-01"}, GOOD]}, "order of their days"),
        ({"dated": [GOOD, GOOD]}, "order of their days"),
        ({"unpriced": True}, "reason"),
        ({"unpriced": True, "free": True, "reason": "r"}, "reason and no amounts"),
        ({**GOOD, "unpriced": True, "reason": "r"}, "no amounts"),
        ({**GOOD, "windows": [{"hours_utc": ["22:00-02:00"]}]}, "write hours"),
        ({**GOOD, "windows": [{"hours_utc": ["01:00-24:30"]}]}, "write hours"),
        ({**GOOD, "windows": [{"hours_utc": []}]}, "at least 1"),
        (
            {
                **GOOD,
                "windows": [{"hours_utc": ["01:00-02:00"]}],
                "tiers": [{"prompt_tokens_over": 5}],
            },
            "tiers and windows",
        ),
        ({**GOOD, "aliases": ["other"]}, "priced twice"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_price_is_refused_with_its_reason(tmp_path: Path, model: Any, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        table(tmp_path, m=model, other=GOOD)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "a: [", "\x00", "version: v\nversion: v", "x: &a [*a]", "- 1", "a" * 1_000_001],
    ids=["empty", "list", "open", "nul", "twice", "loop", "item", "huge"],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(SpecError):
        load_prices(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="nowhere"):
        load_prices(tmp_path / "nowhere.yaml")


def test_the_bound_holds_where_a_longer_prompt_is_cheaper(tmp_path: Path) -> None:
    cheaper = {"prompt_tokens_over": 1000, "input": "1.00", "output": "1.00"}
    rates = {"input": "10.00", "output": "10.00"}
    prices = table(tmp_path, m={"per_million": rates, "source": "x", "tiers": [cheaper]})
    bound = prices.bound("m", 1500, 100).nanousd
    assert bound is not None
    assert bound >= prices.cost("m", usage(prompt=1000, completion=100)).nanousd


@pytest.mark.parametrize(
    "entry",
    [
        {"free": True, "reason": " "},
        {"per_million": {"input": "1.00", "output": "1.00"}, "source": " "},
        {
            "per_million": {"input": "1.00", "output": "1.00"},
            "source": "x",
            "tiers": [{"prompt_tokens_over": 5, "input": i} for i in ("2.00", "3.00")],
        },
    ],
    ids=["blank reason", "blank source", "two tiers at once"],
)
def test_an_entry_that_only_seems_to_say_something_is_refused(tmp_path: Path, entry: Any) -> None:
    with pytest.raises(SpecError):
        table(tmp_path, m=entry)
