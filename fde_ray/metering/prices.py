"""The pinned price table, and what a call costs by it in integer nano-US-dollars.

A name that the table does not list has no price: the cost is None with a reason, never zero. There
is no guessing by prefix. `free` entries need a reason of their own. `quotes` holds what an entry
says of one model.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple, Self

from pydantic import Field, model_validator

from fde_ray.model.base import Record, digest
from fde_ray.model.chat import Usage
from fde_ray.model.documents import parse_document
from fde_ray.model.errors import SpecError
from fde_ray.model.usage_parts import Parts, parts_of

from .quotes import Price, Quote, Rates

NANO_PER_MILLION_TOKENS = 1000  # one dollar per million tokens = 1000 nano-dollars per token
OFFLINE = "offline/"
_DAY_S = 86_400.0


class Cost(NamedTuple):
    """`nanousd` None = unknown, with the reason; zero only for free and offline calls."""

    nanousd: int | None
    reason: str


class PriceTable(Record):
    version: str = Field(min_length=1, max_length=100)
    currency: Literal["USD"]
    models: dict[str, Price]

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        seen: set[str] = set()
        for name, price in self.models.items():
            for known in (name, *price.aliases):
                if known in seen:
                    raise ValueError(f"{known[:60]!r} is priced twice")
                seen.add(known)
        return self

    @cached_property
    def hash(self) -> str:
        """SHA-256 of what the table says, whatever its layout and comments."""
        return digest(self.model_dump(mode="json", exclude_defaults=True))

    @cached_property
    def _by_name(self) -> dict[str, Price]:
        return {
            known: price for name, price in self.models.items() for known in (name, *price.aliases)
        }

    def price_of(self, model: str) -> Price | None:
        """Return the price listed under exactly this name or alias."""
        return self._by_name.get(model)

    def cost(self, model: str, usage: Usage, at: float | None = None) -> Cost:
        """Return what a call costs. at: when it ended, None = the dearest that is listed."""
        if usage.source == "offline":
            return Cost(0, "offline")
        price = self.price_of(model)
        if price is None:
            return Cost(None, f"no price for {model[:100]!r}")
        if at is None:
            return _dearest([_cost_by(quote, usage, None) for quote in price.quotes])
        quote = price.quote_at(at)
        return Cost(None, self.lack(model, at)) if quote is None else _cost_by(quote, usage, at)

    def bound(
        self,
        model: str,
        prompt_tokens: int,
        completion_tokens: int,
        at: float | None = None,
        *,
        long_cache: bool = True,
    ) -> Cost:
        """Return the most that a call of at most so many tokens may cost, whatever of its prompt
        goes to a cache. at: when it begins, it takes less than a day; None = at any time.
        long_cache: whether it may write to a cache that lives for hours."""
        if model.startswith(OFFLINE):
            return Cost(0, "offline")
        price = self.price_of(model)
        if price is None:
            return Cost(None, f"no price for {model[:100]!r}")
        now = None if at is None else price.quote_at(at)
        soon = [q for q in price.quotes if at is None or at < q.since <= at + _DAY_S]
        quotes = [quote for quote in (now, *soon) if quote]
        bounds = [_bound_by(q, prompt_tokens, completion_tokens, long_cache) for q in quotes]
        return _dearest(bounds or [Cost(None, f"no price for {model[:100]!r} yet")])

    def lack(self, model: str, at: float) -> str:
        """Return why calls of a model have no price at a time; "" = they have one."""
        if model.startswith(OFFLINE):
            return ""
        price = self.price_of(model)
        if price is None:
            return f"no price for {model[:100]!r}"
        quote = price.quote_at(at)
        if quote is None:
            return f"no price for {model[:100]!r} before {price.quotes[0].effective_from}"
        return f"unpriced: {quote.reason}" if quote.unpriced else ""


def _cost_by(quote: Quote, usage: Usage, at: float | None) -> Cost:
    if quote.free:
        return Cost(0, f"free: {quote.reason}")
    if quote.unpriced:
        return Cost(None, f"unpriced: {quote.reason}")
    parts = parts_of(usage)
    if isinstance(parts, str):
        return Cost(None, parts)
    if at is None:
        return _dearest([_priced(rates, parts) for rates in quote.rates_ever(parts.prompt)])
    return _priced(quote.rates_at(at, parts.prompt), parts)


def _bound_by(quote: Quote, prompt_tokens: int, completion_tokens: int, long_cache: bool) -> Cost:
    if quote.free or quote.unpriced:
        return _cost_by(quote, Usage(), None)
    return _dearest(
        [
            Cost(_nanousd(prompt_tokens * given + completion_tokens * taken), "priced")
            for given, taken in (
                _dearest_rates(rates, long_cache) for rates in quote.rates_up_to(prompt_tokens)
            )
        ]
    )


def _dearest_rates(rates: Rates, long_cache: bool) -> tuple[Decimal, Decimal]:
    """Return the dearest that a token of the prompt, and one of the output, may cost."""
    longest = rates.cache_write_1h if long_cache else None
    prompt = (rates.input, rates.cache_read, rates.cache_write_5m, longest)
    output = (rates.output, rates.reasoning)
    return max(a for a in prompt if a is not None), max(a for a in output if a is not None)


def _nanousd(dollars_per_million: Decimal) -> int:
    nano = dollars_per_million * NANO_PER_MILLION_TOKENS
    return int(nano.to_integral_value(ROUND_HALF_EVEN))


def _priced(rates: Rates, parts: Parts) -> Cost:
    total = Decimal(0)
    for name, tokens in zip(Parts._fields, parts, strict=True):
        if not tokens:
            continue
        amount: Decimal | None = getattr(rates, name)
        if amount is None and name == "reasoning":
            amount = rates.output
        if amount is None:
            return Cost(None, f"no price for {name}")
        total += tokens * amount
    return Cost(_nanousd(total), "priced")


def _dearest(costs: list[Cost]) -> Cost:
    """Return the greatest that is known, or the first when none is."""
    known = [cost for cost in costs if cost.nanousd is not None]
    return max(known, key=lambda cost: cost.nanousd or 0) if known else costs[0]


def load_prices(path: Path | None = None) -> PriceTable:
    """Return the table at `path`, or the one that ships with this package; SpecError if wrong."""
    if path is None:
        shipped = resources.files("fde_ray.metering") / "prices.yaml"
        return parse_document(shipped.read_bytes(), PriceTable, path="prices.yaml")
    try:
        return parse_document(path.read_bytes(), PriceTable, path=str(path))
    except OSError as error:
        raise SpecError(f"cannot be read ({error.strerror})", path=str(path)) from error
