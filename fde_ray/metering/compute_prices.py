"""What a node costs an hour, and how that falls on its CPUs, its memory and its GPUs.

The table is a file with a version and a hash. A type of node that it does not list has no price:
unknown, with the reason, never zero. The price of spot nodes is a series over time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from fde_ray.model.base import Record, digest
from fde_ray.model.documents import parse_document
from fde_ray.model.errors import SpecError
from fde_ray.model.pods import Capacity, NodeFacts
from fde_ray.model.units import Size

from .quotes import IsoDay

NANO = 10**9
HOUR_S = 3600
MOST_PER_HOUR = Decimal(10_000)


def _text(value: Any) -> Any:
    if not isinstance(value, str | Decimal):
        raise ValueError('write amounts as quoted text, such as "0.192"')
    return value


def _no_zero(amount: Decimal) -> Decimal:
    if amount == 0:
        raise ValueError("zero is not a price; use `free: true` with a reason")
    return amount


def _moment(value: str) -> str:
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError as error:
        raise ValueError('write a time such as "2026-11-30T12:00:00Z"') from error
    if parsed.tzinfo is None:
        raise ValueError(f"say of which zone {value[:40]!r} is, such as with a Z for UTC")
    return value


PerHour = Annotated[
    Decimal,
    BeforeValidator(_text),
    Field(ge=0, le=MOST_PER_HOUR, allow_inf_nan=False, decimal_places=9),
    AfterValidator(_no_zero),
]
"""US dollars an hour."""
Moment = Annotated[str, AfterValidator(_moment)]


class SpotPrice(Record):
    """Holds from `at` to the next one of the series."""

    at: Moment
    per_hour: PerHour

    @property
    def since(self) -> float:
        return datetime.fromisoformat(self.at).astimezone(UTC).timestamp()


class NodePrice(Record):
    """A type of node. `region` "" = any that is not listed by itself."""

    provider: str = Field(min_length=1)
    region: str = ""
    instance_type: str = Field(min_length=1)
    cpus: float = Field(gt=0)
    memory: Size = Field(gt=0)
    gpus: int = Field(default=0, ge=0)
    per_hour: PerHour | None = None
    """On demand; None = not known."""
    spot: tuple[SpotPrice, ...] = ()
    """None of them = what spot costs is not known; the price on demand is its upper bound."""
    free: bool = False
    reason: str = ""
    source: str = ""
    checked: IsoDay | None = None

    @model_validator(mode="after")
    def _zero_is_said_aloud(self) -> Self:
        priced = self.per_hour is not None or bool(self.spot)
        if self.free and (priced or not self.reason):
            raise ValueError("a free node has a reason and no amounts")
        if not self.free and (not priced or not self.source):
            raise ValueError("a node needs a price and its source")
        times = [spot.since for spot in self.spot]
        if times != sorted(set(times)):
            raise ValueError("spot prices stand in the order of their times, each time once")
        return self

    @cached_property
    def _spot_times(self) -> list[float]:
        return [spot.since for spot in self.spot]

    def spot_at(self, at: float) -> SpotPrice | None:
        place = bisect_right(self._spot_times, at)
        return self.spot[place - 1] if place else None


class Split(Record):
    """How a node's price falls on its parts: the weight of a CPU, of a GiB and of a GPU."""

    cpu: PerHour = Decimal("0.031611")
    gib: PerHour = Decimal("0.004237")
    gpu: PerHour = Decimal("0.95")


class Rate(NamedTuple):
    """What a node costs in one span of time. `nanousd_per_s` None = unknown."""

    begin: float
    end: float
    nanousd_per_s: Fraction | None
    note: str
    """Why it is unknown, or what is to be known of it: `free`, `on_demand_bound`; "" = priced."""


class ComputePriceTable(Record):
    version: str = Field(min_length=1, max_length=100)
    currency: Literal["USD"]
    split: Split = Split()
    nodes: tuple[NodePrice, ...] = ()

    @model_validator(mode="after")
    def _nodes_are_unique(self) -> Self:
        seen: set[tuple[str, str, str]] = set()
        for node in self.nodes:
            key = node.provider, node.region, node.instance_type
            if key in seen:
                raise ValueError(f"{'/'.join(key)[:80]} is priced twice")
            seen.add(key)
        return self

    @cached_property
    def hash(self) -> str:
        """SHA-256 of what the table says, whatever its layout and comments."""
        return digest(self.model_dump(mode="json", exclude_defaults=True))

    @cached_property
    def _by_type(self) -> dict[tuple[str, str, str], NodePrice]:
        return {(n.provider, n.region, n.instance_type): n for n in self.nodes}

    def price_of(self, node: NodeFacts) -> NodePrice | None:
        found = self._by_type.get((node.provider, node.region, node.instance_type))
        return found or self._by_type.get((node.provider, "", node.instance_type))

    def rates(self, node: NodeFacts, begin: float, end: float) -> Iterator[Rate]:
        """Yield what the node costs from `begin` to `end`, in spans of one rate."""
        price = self.price_of(node)
        if price is None:
            yield Rate(begin, end, None, f"no price for a node of {node.name}")
        elif price.free:
            yield Rate(begin, end, Fraction(0), "free")
        elif node.capacity is Capacity.UNKNOWN:
            yield Rate(begin, end, None, f"nobody says whether {node.name} is a spot node")
        elif node.capacity is Capacity.ON_DEMAND:
            yield _flat(price, begin, end, "")
        else:
            yield from _spot(price, begin, end)

    def shares(self, price: NodePrice) -> tuple[Fraction, Fraction, Fraction]:
        """Return which share of the node's price falls on a CPU, a byte and a GPU: over the whole
        node they add up to 1."""
        cpu, gib, gpu = (Fraction(w) for w in (self.split.cpu, self.split.gib, self.split.gpu))
        whole = cpu * Fraction(price.cpus) + gib * Fraction(price.memory, 2**30) + gpu * price.gpus
        return cpu / whole, gib / 2**30 / whole, gpu / whole


def _per_second(amount: Decimal) -> Fraction:
    return Fraction(amount) * NANO / HOUR_S


def _flat(price: NodePrice, begin: float, end: float, note: str) -> Rate:
    if price.per_hour is None:
        return Rate(begin, end, None, f"no price on demand for {price.instance_type}")
    return Rate(begin, end, _per_second(price.per_hour), note)


def _spot(price: NodePrice, begin: float, end: float) -> Iterator[Rate]:
    edges = [at for at in (spot.since for spot in price.spot) if begin < at < end]
    for start, stop in zip([begin, *edges], [*edges, end], strict=True):
        spot = price.spot_at(start)
        if spot is None:
            yield _flat(price, start, stop, "on_demand_bound")
        else:
            yield Rate(start, stop, _per_second(spot.per_hour), "")


def load_compute_prices(path: Path | None = None) -> ComputePriceTable:
    """Return the table at `path`, or the one that ships with this package; SpecError if wrong."""
    if path is None:
        shipped = resources.files("fde_ray.metering") / "compute_prices.yaml"
        return parse_document(shipped.read_bytes(), ComputePriceTable, path="compute_prices.yaml")
    try:
        return parse_document(path.read_bytes(), ComputePriceTable, path=str(path))
    except OSError as error:
        raise SpecError(f"cannot be read ({error.strerror})", path=str(path)) from error
