"""The price table: what it refuses, and what calls cost by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fde_ray.metering.prices import load_prices
from fde_ray.model.chat import Usage
from fde_ray.model.errors import SpecError

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
        assert not price.free
        assert price.source.startswith("https://")
        assert (shipped.cost(name, usage()).nanousd or 0) > 0
    assert len(shipped.hash) == 64


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


def test_reasoning_outside_the_completion_count_is_added(tmp_path: Path) -> None:
    prices = table(tmp_path, inside=GOOD, outside={**GOOD, "reasoning_in_output": False})
    thinking = usage(reasoning_tokens=50)
    assert prices.cost("inside", thinking).nanousd == 4_500_000
    assert prices.cost("outside", thinking).nanousd == 4_500_000 + 750_000


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
        ({"per_million": {"input": "1e99", "output": "1"}, "source": "s"}, "less than"),
        ({"per_million": {"input": "x", "output": "1"}, "source": "s"}, "decimal"),
        ({"per_million": {"input": "1", "output": "1"}}, "source"),
        ({**GOOD, "free": True, "reason": "r"}, "no amounts"),
        ({"free": True}, "reason"),
        ({**GOOD, "discount": "9"}, "unknown key"),
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
