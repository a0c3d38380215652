"""What a person is told of a price table, and of a sweep's models in it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

from fde_ray.metering.price_checks import (
    differences,
    doubts,
    models_of,
    strangers,
    unpriced_in,
)
from fde_ray.metering.prices import PriceTable, load_prices
from fde_ray.model.specs import SweepSpec

TODAY = date(2026, 11, 30)
NOW = datetime(2026, 11, 30, tzinfo=UTC).timestamp()
GOOD = {"per_million": {"input": "3", "output": "15"}, "source": "page", "checked": "2026-11-01"}
PANEL = ["acme/e1", "acme/e2", "acme/e2", "offline/e", "acme/e3"]


def table(**models: Any) -> PriceTable:
    return PriceTable.model_validate({"version": "v", "currency": "USD", "models": models})


def spec(**more: Any) -> SweepSpec:
    return SweepSpec.model_validate(
        {
            "name": "mine",
            "cases": ["017"],
            "conditions": ["hidden"],
            "systems": [{"name": "s", "scaffold": "minimal", "model": "acme/agent"}],
            "customer": {"model": "acme/e1"},
            "panel": {"models": PANEL},
            **more,
        }
    )


def test_the_shipped_table_leaves_no_doubt() -> None:
    assert doubts(load_prices(), TODAY) == []


def test_slips_are_pointed_at() -> None:
    odd = {"input": "3", "output": "1", "cache_read": "4", "cache_write_5m": "2"}
    tier = {"prompt_tokens_over": 10, "input": "20"}
    found = doubts(
        table(
            odd={**GOOD, "per_million": odd},
            tiered={**GOOD, "tiers": [tier]},
            old={**GOOD, "checked": "2026-01-01"},
            nobody={"per_million": GOOD["per_million"], "source": "page"},
            own={"free": True, "reason": "own machine"},
            good=GOOD,
        ),
        TODAY,
    )
    texts = {(doubt.model, doubt.text) for doubt in found}
    assert texts == {
        ("odd", "output 1 is cheaper than input 3"),
        ("odd", "cache_read 4 is dearer than input 3"),
        ("odd", "cache_write_5m 2 is cheaper than input 3"),
        ("tiered", "output 15 is cheaper than input 20"),
        ("old", "its source was last checked on 2026-01-01"),
        ("nobody", "nobody noted when its source was checked"),
    }


def test_a_doubt_of_all_dated_prices_is_told_once_and_of_some_with_their_days() -> None:
    odd = {"source": "page", "checked": "2026-01-01"}
    cheap, dear = {"input": "3", "output": "1"}, {"input": "3", "output": "15"}
    prices = [
        {**odd, "per_million": dear},
        {**odd, "per_million": cheap, "effective_from": "2026-09-01"},
        {**odd, "per_million": cheap, "effective_from": "2027-01-01"},
    ]
    tier = {"prompt_tokens_over": 10, "output": "2"}
    found = doubts(
        table(
            dated={"dated": prices},
            tiered={**GOOD, "tiers": [tier, tier | {"prompt_tokens_over": 20}]},
        ),
        TODAY,
    )
    assert [tuple(one) for one in found] == [
        ("dated", "its source was last checked on 2026-01-01"),
        (
            "dated",
            "output 1 is cheaper than input 3 (prices since 2026-09-01, 2027-01-01)",
        ),
        ("tiered", "output 2 is cheaper than input 3"),
    ]


def test_the_roles_of_every_model_are_told() -> None:
    panel = ("detector", "extractor", "judge")
    assert models_of(spec()) == {
        "acme/agent": ("agent",),
        "acme/e1": ("customer", *panel),
        "acme/e2": panel,
        "offline/e": panel,
        "acme/e3": panel,
    }
    assert models_of(spec(judges=["acme/j"] * 5))["acme/j"] == ("judge",)


def test_models_without_a_price_are_told_with_roles_and_reason() -> None:
    later = {"dated": [{**GOOD, "effective_from": "2027-01-01"}]}
    unknown = {"unpriced": True, "reason": "not public"}
    prices = table(**{"acme/e1": GOOD, "acme/e2": later, "acme/e3": unknown})
    found = {one.model: (one.roles, one.reason) for one in unpriced_in(spec(), prices, NOW)}
    panel = ("detector", "extractor", "judge")
    assert found == {
        "acme/agent": (("agent",), "no price for 'acme/agent'"),
        "acme/e2": (panel, "no price for 'acme/e2' before 2027-01-01"),
        "acme/e3": (panel, "unpriced: not public"),
    }


def test_two_tables_differ_value_by_value() -> None:
    tier = {"prompt_tokens_over": 10, "input": "6"}
    before = table(gone=GOOD, same=GOOD, moved={**GOOD, "tiers": [tier]})
    spelled = {"input": "3.00", "output": "15.0"}
    after = table(
        same={**GOOD, "per_million": spelled},
        moved={**GOOD, "tiers": [{**tier, "input": "7"}], "aliases": ["m"]},
        new={"free": True, "reason": "own"},
    )
    found = {(one.model, one.what): (one.before, one.after) for one in differences(before, after)}
    assert found == {
        ("gone", "checked"): ("2026-11-01", None),
        ("gone", "per_million.input"): ("3", None),
        ("gone", "per_million.output"): ("15", None),
        ("gone", "source"): ("page", None),
        ("moved", "aliases"): (None, ["m"]),
        ("moved", "tiers[0].input"): ("6", "7"),
        ("new", "free"): (None, True),
        ("new", "reason"): (None, "own"),
    }
    assert differences(before, before) == []


def test_an_answer_by_a_model_that_is_no_alias_is_told() -> None:
    prices = table(**{"acme/big": {**GOOD, "aliases": ["big-2026"]}, "acme/other": GOOD})
    answers = [
        ("acme/big", "acme/big", 1),
        ("acme/big", "big", 1),
        ("acme/big", "big-2026", 1),
        ("acme/big", "big-fp8", 1),
        ("acme/big", "acme/other", 12),
        ("acme/new", "newer", 3),
    ]
    told = strangers(answers, prices, {"big-fp8"})
    assert len(told) == 2
    assert told[0].startswith("12 calls of acme/big were answered by 'acme/other', which")
    assert told[1].startswith("3 calls of acme/new were answered by 'newer', which")
