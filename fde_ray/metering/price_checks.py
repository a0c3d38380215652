"""What a person should look at in a price table: doubtful entries, models without a price, and how
two tables differ."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import date
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from fde_ray.model.specs import SweepSpec

from .prices import PriceTable
from .quotes import Price, Quote, Rates

OLD_DAYS = 120


class Doubt(NamedTuple):
    model: str
    text: str


class Unpriced(NamedTuple):
    """A model of a sweep whose calls cannot be priced now."""

    model: str
    roles: tuple[str, ...]
    reason: str


class Difference(NamedTuple):
    """One value that differs; None = it stands in the other table only."""

    model: str
    what: str
    before: Any
    after: Any


def doubts(table: PriceTable, today: date) -> list[Doubt]:
    """Return what may be a slip: nothing here is refused."""
    return [
        Doubt(name, text) for name, price in table.models.items() for text in _grouped(price, today)
    ]


def _grouped(price: Price, today: date) -> Iterator[str]:
    """Yield each doubt once, with the dates of its prices unless it is of all."""
    found: dict[str, list[str]] = {}
    for quote in price.quotes:
        for text in dict.fromkeys(_doubts(quote, today)):
            found.setdefault(text, []).append(quote.effective_from or "ever")
    for text, days in found.items():
        is_of_all = len(days) == len(price.quotes)
        yield text if is_of_all else f"{text} (prices since {', '.join(days)})"


def _doubts(quote: Quote, today: date) -> Iterator[str]:
    if quote.free or quote.unpriced:
        return
    for rates in (quote.per_million, *quote.tiers, *quote.windows):
        yield from _odd_rates(quote.per_million.overlaid(rates))
    if quote.checked is None:
        yield "nobody noted when its source was checked"
    elif (today - date.fromisoformat(quote.checked)).days > OLD_DAYS:
        yield f"its source was last checked on {quote.checked}"


def _odd_rates(rates: Rates) -> Iterator[str]:
    if rates.input is None or rates.output is None:
        return
    if rates.output < rates.input:
        yield f"output {rates.output} is cheaper than input {rates.input}"
    if rates.cache_read is not None and rates.cache_read > rates.input:
        yield f"cache_read {rates.cache_read} is dearer than input {rates.input}"
    for name in ("cache_write_5m", "cache_write_1h"):
        amount = getattr(rates, name)
        if amount is not None and amount < rates.input:
            yield f"{name} {amount} is cheaper than input {rates.input}"


def models_of(spec: SweepSpec) -> dict[str, tuple[str, ...]]:
    """Return the roles that each model of a sweep plays."""
    asked = {
        "agent": [system.model for system in spec.systems],
        "customer": [spec.customer.model],
        "detector": spec.detector_models,
        "extractor": spec.panel.models,
        "judge": spec.judge_models,
    }
    found: dict[str, dict[str, None]] = {}
    for role, models in asked.items():
        for model in models:
            found.setdefault(model, {})[role] = None
    return {model: tuple(roles) for model, roles in found.items()}


def unpriced_in(spec: SweepSpec, table: PriceTable, at: float) -> list[Unpriced]:
    return [
        Unpriced(model, roles, reason)
        for model, roles in models_of(spec).items()
        if (reason := table.lack(model, at))
    ]


def strangers(
    answers: Iterable[tuple[str, str, int]], table: PriceTable, wire_names: Collection[str] = ()
) -> list[str]:
    """Return a sentence for each model that a provider named and the table does not know as the
    one that was asked. answers: (asked, named, calls). wire_names: what endpoints call models."""
    return [
        f"{calls:,} calls of {asked} were answered by {named[:100]!r}, which the price table does "
        "not list as its alias"
        for asked, named, calls in answers
        if not _is_known(asked, named, table) and named not in wire_names
    ]


def _is_known(asked: str, named: str, table: PriceTable) -> bool:
    if named in (asked, asked.partition("/")[2]):
        return True
    price = table.price_of(asked)
    return price is not None and table.price_of(named) is price


def differences(before: PriceTable, after: PriceTable) -> list[Difference]:
    """Return how two tables differ, model by model, value by value."""
    found = []
    for model in sorted({*before.models, *after.models}):
        old, new = _values(before, model), _values(after, model)
        for what in sorted({*old, *new}):
            if not _same(old.get(what), new.get(what)):
                found.append(Difference(model, what, old.get(what), new.get(what)))
    return found


def _same(before: Any, after: Any) -> bool:
    """Whether two values say the same: 3.0 is 3.00."""
    if not isinstance(before, str) or not isinstance(after, str):
        return bool(before == after)
    try:
        return Decimal(before) == Decimal(after)
    except InvalidOperation:
        return before == after


def _values(table: PriceTable, model: str) -> dict[str, Any]:
    price = table.models.get(model)
    if price is None:
        return {}
    return dict(_flat("", price.model_dump(mode="json", exclude_defaults=True)))


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{path}.{key}" if path else str(key), inner)
    elif isinstance(value, list) and any(isinstance(one, dict) for one in value):
        for place, inner in enumerate(value):
            yield from _flat(f"{path}[{place}]", inner)
    else:
        yield path, value
