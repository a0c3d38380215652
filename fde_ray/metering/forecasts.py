"""What planned runs may cost before any of them starts: from past runs, or stated assumptions.

Every figure says what it stands on. A model without a price makes it a lower bound; where there is
neither a past run nor an assumption, nothing is said.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Literal, NamedTuple, TypeAlias

from pydantic import Field

from fde_ray.model.base import Record
from fde_ray.model.chat import Usage
from fde_ray.model.errors import UserError
from fde_ray.model.plan import RunPlan
from fde_ray.model.pods import HostRate
from fde_ray.model.states import Role

from .compute import Held, host_cost
from .prices import OFFLINE, PriceTable

Basis: TypeAlias = Literal["past_runs", "assumptions", "offline", "free", "nothing"]
ENOUGH_FOR_TENTHS = 10
_NUMBER = r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([kM]?)"
_RANGE = rf"{_NUMBER}(?:-{_NUMBER})?"
_ASSUMED = re.compile(rf"([a-z]+)={_RANGE}(?:@([0-9]{{1,3}})%)?/{_RANGE}")
_SCALE = {"": 1, "k": 1000, "M": 1_000_000}


class Span(NamedTuple):
    low: int
    high: int


class Assumed(NamedTuple):
    """Tokens of one role in one run, for each of its models."""

    prompt: Span
    cached_percent: int
    """Of the prompt, read from a cache."""
    output: Span


class PastRun(NamedTuple):
    """What one done run of the same system and condition has cost; None = unknown in part."""

    nanousd: int | None


class Amount(Record):
    """`high` None = no upper end is known."""

    low_nanousd: int
    likely_nanousd: int | None
    high_nanousd: int | None


class GroupForecast(Record):
    """Runs of one system under one condition."""

    system: str
    condition: str
    runs: int
    basis: Basis
    past_runs: int
    """That the figure stands on."""
    amount: Amount | None
    """None = nothing is known."""
    notes: tuple[str, ...] = ()


class Forecast(Record):
    """Of model calls. The whole is known as far as every group is."""

    schema_: Literal["fde_ray.forecast/1"] = Field(alias="schema", default="fde_ray.forecast/1")
    price_hash: str
    groups: tuple[GroupForecast, ...]
    amount: Amount | None
    unknown_groups: int
    compute_most_nanousd: int | None = None
    """If every agent's sandbox lived as long as it may; None = this machine has no rate."""
    notes: tuple[str, ...]


def assumptions(texts: Iterable[str]) -> dict[str, Assumed]:
    """Read texts such as `agent=1M-6M@80%/50k-300k`: tokens of prompts, with the share that comes
    from a cache, and of output. UserError says what is wrong."""
    found: dict[str, Assumed] = {}
    for text in texts:
        match = _ASSUMED.fullmatch(text.strip())
        if match is None or match[1] not in set(Role) or int(match[6] or 0) > 100:
            roles = ", ".join(Role)
            raise UserError(
                f"--assume: write ROLE=PROMPT/OUTPUT such as agent=1M-6M@80%/50k-300k, "
                f"not {text[:60]!r}; roles: {roles}"
            )
        if match[1] in found:
            raise UserError(f"--assume: {match[1]} is given twice")
        prompt = _span(match[2], match[3], match[4], match[5])
        output = _span(match[7], match[8], match[9], match[10])
        found[match[1]] = Assumed(prompt, int(match[6] or 0), output)
    return found


def _span(low: str, low_scale: str, high: str | None, high_scale: str | None) -> Span:
    first = int(Decimal(low) * _SCALE[low_scale])
    last = first if high is None else int(Decimal(high) * _SCALE[high_scale or ""])
    if last < first:
        raise UserError(f"--assume: {high}{high_scale} is less than {low}{low_scale}")
    return Span(first, last)


def group_key(plan: RunPlan) -> tuple[str, str]:
    return plan.system.name, plan.condition.label


def forecast(
    plans: Sequence[RunPlan],
    past: Mapping[tuple[str, str], Sequence[PastRun]],
    assumed: Mapping[str, Assumed],
    prices: PriceTable,
    at: float,
    host: HostRate | None = None,
) -> Forecast:
    """Return what the planned runs may cost. past: done runs of the same system and condition."""
    counts = Counter(map(group_key, plans))
    firsts = {group_key(plan): plan for plan in reversed(plans)}
    groups = tuple(
        _group(firsts[key], counts[key], past.get(key, ()), assumed, prices, at) for key in counts
    )
    known = [group.amount for group in groups if group.amount is not None]
    return Forecast(
        price_hash=prices.hash,
        groups=groups,
        amount=_whole(known, is_whole=len(known) == len(groups)) if known else None,
        unknown_groups=len(groups) - len(known),
        compute_most_nanousd=_sum([_compute_most(plan, host) for plan in plans]),
        notes=tuple(sorted({note for group in groups for note in group.notes})),
    )


def _compute_most(plan: RunPlan, host: HostRate | None) -> int | None:
    limits = plan.limits
    held = Held(limits.cpu, limits.memory, limits.time + limits.pause_cap)
    return host_cost(held, host).nanousd


def _whole(known: Sequence[Amount], *, is_whole: bool) -> Amount:
    likely = [one.likely_nanousd for one in known]
    high = [one.high_nanousd for one in known]
    return Amount(
        low_nanousd=sum(one.low_nanousd for one in known),
        likely_nanousd=_sum(likely) if is_whole else None,
        high_nanousd=_sum(high) if is_whole else None,
    )


def _sum(amounts: Sequence[int | None]) -> int | None:
    known = [one for one in amounts if one is not None]
    return sum(known) if len(known) == len(amounts) else None


def _group(
    plan: RunPlan,
    runs: int,
    past: Sequence[PastRun],
    assumed: Mapping[str, Assumed],
    prices: PriceTable,
    at: float,
) -> GroupForecast:
    asked = models_of_run(plan)
    costs = sorted(one.nanousd for one in past if one.nanousd is not None)
    amount: Amount | None = None
    notes: tuple[str, ...] = ()
    basis: Basis = "nothing"
    charged = [model for models in asked.values() for model in models if _is_online(model)]
    if all(_is_free(prices, model, at) for model in charged):
        basis = "free" if charged else "offline"
        amount = Amount(low_nanousd=0, likely_nanousd=0, high_nanousd=0)
    elif costs:
        basis, amount = "past_runs", _from_past(costs, runs)
        if left := len(past) - len(costs):
            notes = (f"{left} past runs have an unknown cost and are left out",)
    elif assumed:
        basis = "assumptions"
        amount, notes = _from_assumptions(asked, assumed, prices, at, runs)
    return GroupForecast(
        system=plan.system.name,
        condition=plan.condition.label,
        runs=runs,
        basis=basis,
        past_runs=len(costs) if basis == "past_runs" else 0,
        amount=amount,
        notes=notes,
    )


def models_of_run(plan: RunPlan) -> dict[str, tuple[str, ...]]:
    """Return the models that are asked in one run, by role."""
    asks = plan.condition.kind.has_questions
    return {
        Role.AGENT: (plan.system.model,),
        **({Role.CUSTOMER: (plan.customer.model,)} if asks else {}),
        **({Role.DETECTOR: plan.detectors} if asks else {}),
        Role.EXTRACTOR: plan.panel.models,
        **({Role.JUDGE: plan.judges} if asks else {}),
    }


def _from_past(costs: Sequence[int], runs: int) -> Amount:
    """Return the mean, and as range what all runs would cost at the first and the last tenth of the
    past ones, or at the cheapest and the dearest where these are few."""
    skipped = len(costs) // ENOUGH_FOR_TENTHS
    return Amount(
        low_nanousd=runs * costs[skipped],
        likely_nanousd=round(runs * sum(costs) / len(costs)),
        high_nanousd=runs * costs[-1 - skipped],
    )


def _from_assumptions(
    asked: Mapping[str, Sequence[str]],
    assumed: Mapping[str, Assumed],
    prices: PriceTable,
    at: float,
    runs: int,
) -> tuple[Amount, tuple[str, ...]]:
    low = high = 0
    notes: list[str] = []
    for role, models in asked.items():
        for model in models:
            if not _is_online(model) or _is_free(prices, model, at):
                continue
            if role not in assumed:
                notes.append(f"nothing is assumed of the {role}")
                continue
            costs = [_cost(prices, model, use, at) for use in _uses(assumed[role])]
            if costs[0] is None or costs[1] is None:
                notes.append(f"{model} cannot be priced: {prices.lack(model, at) or 'its cache'}")
                continue
            low, high = low + costs[0], high + costs[1]
    amount = Amount(
        low_nanousd=runs * low,
        likely_nanousd=None if notes else runs * (low + high) // 2,
        high_nanousd=None if notes else runs * high,
    )
    return amount, tuple(dict.fromkeys(notes))


def _uses(assumed: Assumed) -> list[Usage]:
    return [
        Usage(
            prompt_tokens=prompt,
            completion_tokens=output,
            cached_tokens=prompt * assumed.cached_percent // 100,
            source="estimated",
        )
        for prompt, output in zip(assumed.prompt, assumed.output, strict=True)
    ]


def _cost(prices: PriceTable, model: str, usage: Usage, at: float) -> int | None:
    return prices.cost(model, usage, at).nanousd


def _is_online(model: str) -> bool:
    return not model.startswith(OFFLINE)


def _is_free(prices: PriceTable, model: str, at: float) -> bool:
    quote = price.quote_at(at) if (price := prices.price_of(model)) else None
    return quote is not None and quote.free
