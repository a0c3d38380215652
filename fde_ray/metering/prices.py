"""The pinned price table, and what a call costs by it in integer nano-US-dollars.

A name that the table does not list has no price: the cost is None with a reason, never zero. There
is no guessing by prefix. `free` entries need a reason of their own.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, model_validator

from fde_ray.model.base import Record, digest
from fde_ray.model.chat import Usage
from fde_ray.model.documents import parse_document
from fde_ray.model.errors import SpecError

NANO_PER_MILLION_TOKENS = 1000  # one dollar per million tokens = 1000 nano-dollars per token
MAX_PRICE = Decimal(1_000_000)


def _amount(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError('write amounts as quoted text, such as "3.00"')
    return value


Amount = Annotated[
    Decimal, BeforeValidator(_amount), Field(ge=0, le=MAX_PRICE, allow_inf_nan=False)
]
"""US dollars per million tokens."""


class PartPrices(Record):
    """A part that is None has no price; tokens of it make the call unpriced."""

    input: Amount | None = None
    output: Amount | None = None
    cache_read: Amount | None = None
    cache_write_5m: Amount | None = None
    cache_write_1h: Amount | None = None


class Tier(PartPrices):
    """Prices that replace the base when a prompt is longer."""

    prompt_tokens_over: int = Field(ge=1)


class Price(Record):
    aliases: tuple[str, ...] = ()
    """Other exact names of the model, such as those that the provider returns."""
    effective_from: str = ""
    per_million: PartPrices = PartPrices()
    tiers: tuple[Tier, ...] = ()
    reasoning_in_output: bool = True
    """Whether the provider's completion count already holds the reasoning tokens."""
    source: str = ""
    free: bool = False
    reason: str = ""

    @model_validator(mode="after")
    def _zero_is_said_aloud(self) -> Self:
        listed = (self.per_million, *self.tiers)
        amounts = [getattr(part, name) for part in listed for name in PartPrices.model_fields]
        if self.free:
            if any(amount is not None for amount in amounts) or not self.reason:
                raise ValueError("a free model has a reason and no amounts")
            return self
        if any(amount == 0 for amount in amounts):
            raise ValueError("zero is not a price; use `free: true` with a reason")
        if self.per_million.input is None or self.per_million.output is None or not self.source:
            raise ValueError("a price needs input, output and its source")
        return self


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

    @property
    def hash(self) -> str:
        return digest(self)

    def price_of(self, model: str) -> Price | None:
        """Return the price listed under exactly this name or alias."""
        if model in self.models:
            return self.models[model]
        return next((p for p in self.models.values() if model in p.aliases), None)

    def cost(self, model: str, usage: Usage) -> Cost:
        if usage.source == "offline":
            return Cost(0, "offline")
        price = self.price_of(model)
        if price is None:
            return Cost(None, f"no price for {model[:100]!r}")
        if price.free:
            return Cost(0, f"free: {price.reason}")
        if usage.prompt_tokens is None or usage.completion_tokens is None:
            return Cost(None, "the provider did not count the tokens")
        return _priced(price, usage.prompt_tokens, usage.completion_tokens, usage)


def _priced(price: Price, prompt: int, completion: int, usage: Usage) -> Cost:
    cached = usage.cached_tokens or 0
    if cached > prompt:
        return Cost(None, "more cached tokens than prompt tokens")
    output = completion if price.reasoning_in_output else completion + (usage.reasoning_tokens or 0)
    parts = _parts_for(price, prompt)
    total = Decimal(0)
    for name, tokens in (("input", prompt - cached), ("cache_read", cached), ("output", output)):
        amount: Decimal | None = getattr(parts, name)
        if tokens and amount is None:
            return Cost(None, f"no price for {name}")
        total += tokens * (amount or Decimal(0)) * NANO_PER_MILLION_TOKENS
    return Cost(int(total.to_integral_value(ROUND_HALF_EVEN)), "priced")


def _parts_for(price: Price, prompt_tokens: int) -> PartPrices:
    """Return the base prices with the highest tier that the prompt exceeds laid over them."""
    fitting = [tier for tier in price.tiers if prompt_tokens > tier.prompt_tokens_over]
    if not fitting:
        return price.per_million
    tier = max(fitting, key=lambda one: one.prompt_tokens_over)
    own = {n: getattr(tier, n) for n in PartPrices.model_fields if getattr(tier, n) is not None}
    return price.per_million.model_copy(update=own)


def load_prices(path: Path | None = None) -> PriceTable:
    """Return the table at `path`, or the one that ships with this package; SpecError if wrong."""
    if path is None:
        shipped = resources.files("fde_ray.metering") / "prices.yaml"
        return parse_document(shipped.read_bytes(), PriceTable, path="prices.yaml")
    try:
        return parse_document(path.read_bytes(), PriceTable, path=str(path))
    except OSError as error:
        raise SpecError(f"cannot be read ({error.strerror})", path=str(path)) from error
