"""What one model costs, in US dollars per million tokens, at one time and under one kind of use.

A `Quote` holds from a date on. Where a vendor charges by the hour of the day or by the length of
the prompt, the quote says so, and `rates_at` gives the rates of one call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from fde_ray.model.base import Record

LEAST = Decimal("0.0001")
MOST = Decimal(10_000)
_HOURS = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-4]):([0-5][0-9])")
_DAY_MINUTES = 24 * 60

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WEEK: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def _text(value: Any) -> Any:
    if not isinstance(value, str | Decimal):
        raise ValueError('write amounts as quoted text, such as "3.00"')
    return value


def _in_dollars_per_million(amount: Decimal) -> Decimal:
    if amount == 0:
        raise ValueError("zero is not a price; use `free: true` with a reason")
    if amount < LEAST:
        raise ValueError("write US dollars per million tokens; this looks like a price per token")
    if amount > MOST:
        raise ValueError(f"more than {MOST} US dollars per million tokens is no price")
    return amount


def _day(value: str) -> str:
    try:
        date.fromisoformat(value)
    except ValueError as error:
        raise ValueError('write a day such as "2026-10-01"') from error
    return value


def _hours(value: str) -> str:
    match = _HOURS.fullmatch(value)
    if match is None or not _minutes(match)[0] < _minutes(match)[1] <= _DAY_MINUTES:
        raise ValueError('write hours such as "01:00-04:00", at most to "24:00"')
    return value


def _minutes(match: re.Match[str]) -> tuple[int, int]:
    from_h, from_m, to_h, to_m = (int(part) for part in match.groups())
    return from_h * 60 + from_m, to_h * 60 + to_m


Amount = Annotated[
    Decimal,
    BeforeValidator(_text),
    Field(ge=0, allow_inf_nan=False, decimal_places=9),
    AfterValidator(_in_dollars_per_million),
]
"""US dollars per million tokens."""
IsoDay = Annotated[str, AfterValidator(_day)]
"""Begins at midnight, UTC."""
Hours = Annotated[str, AfterValidator(_hours)]


class Rates(Record):
    """A part that is None has no price: tokens of it make the call unpriced."""

    input: Amount | None = None
    """Of the prompt, what neither came from a cache nor went to one."""
    output: Amount | None = None
    reasoning: Amount | None = None
    """None = as output."""
    cache_read: Amount | None = None
    cache_write_5m: Amount | None = None
    cache_write_1h: Amount | None = None

    def overlaid(self, other: Rates) -> Rates:
        """Return these rates with those that `other` names in their place."""
        own = {n: getattr(other, n) for n in Rates.model_fields if getattr(other, n) is not None}
        return Rates.model_construct(**{n: getattr(self, n) for n in Rates.model_fields} | own)


class Tier(Rates):
    """Rates that replace the base for the whole call when its prompt is longer."""

    prompt_tokens_over: int = Field(ge=1)


class Window(Rates):
    """Rates that replace the base at these hours (UTC) of these days."""

    hours_utc: tuple[Hours, ...] = Field(min_length=1)
    days: tuple[Day, ...] = Field(default=WEEK, min_length=1)

    def is_open(self, at: float) -> bool:
        moment = datetime.fromtimestamp(at, UTC)
        minute = moment.hour * 60 + moment.minute
        if WEEK[moment.weekday()] not in self.days:
            return False
        spans = (_minutes(match) for h in self.hours_utc if (match := _HOURS.fullmatch(h)))
        return any(begin <= minute < end for begin, end in spans)


class Quote(Record):
    """A price from one day on: rates, or `free`, or `unpriced`, the last two with their reason."""

    effective_from: IsoDay | None = None
    """None = since ever."""
    per_million: Rates = Rates()
    tiers: tuple[Tier, ...] = ()
    windows: tuple[Window, ...] = ()
    source: str = Field(default="", max_length=1000)
    checked: IsoDay | None = None
    """When somebody last looked at the source."""
    free: bool = False
    unpriced: bool = False
    """Known, and its price is not; `reason` says why."""
    reason: str = Field(default="", max_length=1000)

    @model_validator(mode="after")
    def _zero_and_unknown_are_said_aloud(self) -> Self:
        listed = (self.per_million, *self.tiers, *self.windows)
        amounts = [getattr(rates, name) for rates in listed for name in Rates.model_fields]
        if self.free or self.unpriced:
            what = "a free model" if self.free else "an unpriced model"
            is_told = bool(self.reason.strip()) and self.free != self.unpriced
            if any(a is not None for a in amounts) or not is_told:
                raise ValueError(f"{what} has a reason and no amounts")
        if self.tiers and self.windows:
            raise ValueError("tiers and windows together are not understood")
        if len({tier.prompt_tokens_over for tier in self.tiers}) < len(self.tiers):
            raise ValueError("two tiers begin at the same length of prompt")
        return self

    @property
    def is_complete(self) -> bool:
        """Whether a call can be priced, or is free, or is said to have no price."""
        base = self.per_million
        said = self.free or self.unpriced
        return said or (
            base.input is not None and base.output is not None and bool(self.source.strip())
        )

    @property
    def since(self) -> float:
        if self.effective_from is None:
            return float("-inf")
        day = date.fromisoformat(self.effective_from)
        return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()

    def rates_at(self, at: float, prompt_tokens: int) -> Rates:
        """Return the rates of a call of this time and this length of prompt."""
        for window in self.windows:
            if window.is_open(at):
                return self.per_million.overlaid(window)
        return self._tiered(prompt_tokens)

    def rates_ever(self, prompt_tokens: int) -> Iterator[Rates]:
        """Yield the rates that a call of this length of prompt may have, whatever its time."""
        yield self._tiered(prompt_tokens)
        for window in self.windows:
            yield self.per_million.overlaid(window)

    def rates_up_to(self, prompt_tokens: int) -> Iterator[Rates]:
        """Yield the rates that a call of at most this length of prompt may have."""
        yield from self.rates_ever(0)
        for tier in self.tiers:
            if prompt_tokens > tier.prompt_tokens_over:
                yield self.per_million.overlaid(tier)

    def _tiered(self, prompt_tokens: int) -> Rates:
        fitting = [tier for tier in self.tiers if prompt_tokens > tier.prompt_tokens_over]
        if not fitting:
            return self.per_million
        return self.per_million.overlaid(max(fitting, key=lambda tier: tier.prompt_tokens_over))


_NOTHING = Quote()


class Price(Quote):
    """A model: one quote, or several under `dated`, each from its own day on."""

    aliases: tuple[str, ...] = ()
    """Other exact names of the model, such as those that the provider returns."""
    dated: tuple[Quote, ...] = ()

    @model_validator(mode="after")
    def _one_way_of_saying_it(self) -> Self:
        if not self.dated:
            if not self.is_complete:
                raise ValueError("a price needs input, output and its source")
            return self
        if any(getattr(self, name) != getattr(_NOTHING, name) for name in Quote.model_fields):
            raise ValueError("with `dated`, every price stands there")
        if not all(quote.is_complete for quote in self.dated):
            raise ValueError("a price needs input, output and its source")
        days = [quote.since for quote in self.dated]
        if days != sorted(set(days)):
            raise ValueError("dated prices stand in the order of their days, each day once")
        return self

    @property
    def quotes(self) -> tuple[Quote, ...]:
        return self.dated or (self,)

    def quote_at(self, at: float) -> Quote | None:
        """Return what holds at a time; None = the first price begins later."""
        return next((quote for quote in reversed(self.quotes) if quote.since <= at), None)
