"""Forecasts say what they stand on, give a range, and nothing where nothing is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fde_ray.metering.forecasts import (
    Assumed,
    Forecast,
    PastRun,
    Span,
    assumptions,
    forecast,
    models_of_run,
)
from fde_ray.metering.prices import PriceTable
from fde_ray.model.errors import UserError
from fde_ray.model.plan import RunPlan
from fde_ray.model.pods import HostRate
from fde_ray.model.specs import Condition, Customer, Panel, System
from fde_ray.model.states import ConditionKind
from tests.store.builders import make_plan

PANEL = ("acme/panel",) * 5
OWN = Panel(models=("acme/own",) * 5)
PRICES = PriceTable.model_validate(
    {
        "version": "v",
        "currency": "USD",
        "models": {
            "acme/agent": {
                "per_million": {"input": "2", "output": "10", "cache_read": "0.5"},
                "source": "page",
            },
            "acme/panel": {"per_million": {"input": "1", "output": "4"}, "source": "page"},
            "acme/own": {"free": True, "reason": "runs here"},
            "acme/customer": {"per_million": {"input": "1", "output": "1"}, "source": "page"},
        },
    }
)
AGENT = {"agent": Assumed(Span(1_000_000, 2_000_000), 0, Span(100_000, 100_000))}
ALL = AGENT | {
    "extractor": Assumed(Span(100_000, 100_000), 0, Span(0, 0)),
    "customer": Assumed(Span(10_000, 10_000), 0, Span(0, 0)),
    "detector": Assumed(Span(0, 0), 0, Span(0, 0)),
    "judge": Assumed(Span(50_000, 50_000), 0, Span(0, 0)),
}


def plan(n: int = 1, kind: ConditionKind = ConditionKind.HIDDEN, **more: Any) -> RunPlan:
    fields: dict[str, Any] = {
        "condition": Condition(kind=kind),
        "system": System(name="s", scaffold="minimal", model="acme/agent"),
        "customer": Customer(model="acme/customer"),
        "panel": Panel(models=PANEL),
        "detectors": PANEL,
        "judges": PANEL,
    }
    return make_plan(n).evolve(**fields | more)


def forecast_of(
    plans: Sequence[RunPlan], past: Sequence[int | None] = (), assumed: Any = None
) -> Forecast:
    found = {("s", "hidden"): [PastRun(one) for one in past]}
    return forecast(plans, found, assumed or {}, PRICES, 1_800_000_000.0)


def amounts(found: Forecast) -> tuple[int | None, ...] | None:
    one = found.amount
    return None if one is None else (one.low_nanousd, one.likely_nanousd, one.high_nanousd)


def test_nothing_known_gives_no_figure() -> None:
    found = forecast_of([plan()])
    assert (found.amount, found.unknown_groups) == (None, 1)
    assert found.groups[0].basis == "nothing"


def test_past_runs_give_their_mean_and_their_range() -> None:
    found = forecast_of([plan(1), plan(2)], [10, 20, 60])
    (group,) = found.groups
    assert (group.basis, group.past_runs, group.runs) == ("past_runs", 3, 2)
    assert amounts(found) == (20, 60, 120)


def test_many_past_runs_leave_the_outer_tenths_out_of_the_range() -> None:
    found = forecast_of([plan()], list(range(1, 21)))
    assert amounts(found) == (3, round(10.5), 18)


def test_past_runs_of_unknown_cost_are_left_out_and_told() -> None:
    found = forecast_of([plan()], [10, None, None])
    assert amounts(found) == (10, 10, 10)
    assert found.notes == ("2 past runs have an unknown cost and are left out",)
    assert forecast_of([plan()], [None]).amount is None


def test_past_runs_go_before_assumptions() -> None:
    assert forecast_of([plan()], [10], ALL).groups[0].basis == "past_runs"


def test_assumptions_are_priced_for_every_model_of_a_role() -> None:
    found = forecast_of([plan(1), plan(2)], (), ALL)
    low = 2_000_000_000 + 1_000_000_000 + 5 * 100_000_000
    high = low + 2_000_000_000
    assert amounts(found) == (2 * low, low + high, 2 * high)
    assert found.groups[0].basis == "assumptions"


def test_questions_bring_their_own_roles() -> None:
    asks = plan(kind=ConditionKind.INTERACT_REQ)
    assert set(models_of_run(asks)) == {"agent", "customer", "detector", "extractor", "judge"}
    assert set(models_of_run(plan())) == {"agent", "extractor"}
    found = forecast_of([asks], (), ALL)
    low = 3_000_000_000 + 500_000_000 + 10_000_000 + 250_000_000
    assert found.amount is not None
    assert found.amount.low_nanousd == low


def test_what_comes_from_a_cache_has_its_own_price() -> None:
    cached = ALL | {"agent": Assumed(Span(1_000_000, 1_000_000), 80, Span(0, 0))}
    found = forecast_of([plan()], (), cached)
    assert found.amount is not None
    assert found.amount.likely_nanousd == 400_000_000 + 400_000_000 + 500_000_000


@pytest.mark.parametrize(
    ("changes", "assumed", "note"),
    [
        ({}, AGENT, "nothing is assumed of the extractor"),
        (
            {"system": System(name="s", scaffold="minimal", model="acme/new")},
            ALL,
            "acme/new cannot be priced: no price for 'acme/new'",
        ),
        (
            {},
            ALL | {"extractor": Assumed(Span(10, 10), 50, Span(1, 1))},
            "acme/panel cannot be priced: its cache",
        ),
    ],
    ids=["a role is left out", "a model has no price", "a cache has no price"],
)
def test_what_is_missing_makes_the_forecast_a_lower_bound(
    changes: Any, assumed: Any, note: str
) -> None:
    found = forecast_of([plan(**changes)], (), assumed)
    assert note in found.notes
    assert found.amount is not None
    assert found.amount.high_nanousd is None
    assert found.amount.likely_nanousd is None
    assert found.amount.low_nanousd > 0


def test_a_group_without_any_figure_makes_the_whole_a_lower_bound() -> None:
    other = plan(2, system=System(name="t", scaffold="minimal", model="acme/agent"))
    found = forecast_of([plan(), other], [10])
    assert (amounts(found), found.unknown_groups) == ((10, None, None), 1)


def test_offline_runs_cost_nothing() -> None:
    offline = make_plan(1)
    assert amounts(forecast_of([offline])) == (0, 0, 0)
    assert forecast_of([offline]).groups[0].basis == "offline"


def test_models_that_are_free_cost_nothing_and_need_no_assumption() -> None:
    free = plan(system=System(name="s", scaffold="minimal", model="acme/own"), panel=OWN)
    found = forecast_of([free])
    assert (found.groups[0].basis, amounts(found)) == ("free", (0, 0, 0))
    mixed = forecast_of([plan(panel=OWN)], assumed=AGENT)
    assert (mixed.notes, mixed.groups[0].basis) == ((), "assumptions")


def test_compute_is_bounded_by_the_limits_when_this_machine_has_a_rate() -> None:
    host = HostRate.model_validate({"per_cpu_hour": "0.04", "per_gib_hour": "0.005"})
    plans = [plan(1), plan(2)]
    found = forecast(plans, {}, {}, PRICES, 1.0, host)
    # 12 h of time and 6 h of pauses, 2 CPUs and 4 GiB, two runs
    assert found.compute_most_nanousd == 2 * 18 * 100_000_000
    assert forecast(plans, {}, {}, PRICES, 1.0).compute_most_nanousd is None
    free = HostRate(free=True, reason="own machine")
    assert forecast(plans, {}, {}, PRICES, 1.0, free).compute_most_nanousd == 0


def test_assumptions_are_read_from_the_command_line() -> None:
    assert assumptions(["agent=1M-6M@80%/50k-300k", "judge=20k/1.5k"]) == {
        "agent": Assumed(Span(1_000_000, 6_000_000), 80, Span(50_000, 300_000)),
        "judge": Assumed(Span(20_000, 20_000), 0, Span(1500, 1500)),
    }
    assert assumptions([]) == {}


@pytest.mark.parametrize(
    "text",
    ["", "agent", "agent=1M", "boss=1M/1k", "agent=1M/1k/2", "agent=-1/1", "agent=1e9/1",
     "agent=9k-1k/1", "agent=1M@101%/1", "agent=99999999999/1", "agent=1M/x", "agent=١/1"],
)  # fmt: skip
def test_an_assumption_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--assume"):
        assumptions([text])


def test_a_role_is_assumed_once() -> None:
    with pytest.raises(UserError, match="given twice"):
        assumptions(["agent=1/1", "agent=2/2"])
