"""What is kept of the life of a pod or a sandbox, so that its cost can be told when it is gone.

The records are our own: cluster objects and their events disappear within the hour. Times are
seconds since the epoch, UTC.
"""

from __future__ import annotations

from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from .base import Record


class Capacity(StrEnum):
    ON_DEMAND = "on_demand"
    SPOT = "spot"
    UNKNOWN = "unknown"
    """The node carried no label that says it."""


class NodeFacts(Record):
    """A node as its labels tell it at the moment a pod is bound to it."""

    node: str
    provider: str
    region: str
    instance_type: str
    capacity: Capacity

    @property
    def name(self) -> str:
        return f"{self.provider}/{self.region}/{self.instance_type}"


class Amounts(Record):
    cpu: float = Field(default=0.0, ge=0)
    memory_bytes: int = Field(default=0, ge=0)
    gpu: int = Field(default=0, ge=0)


class ContainerRequest(Record):
    """What one container asks for; a sidecar is an init container that stays."""

    name: str
    kind: Literal["container", "init", "sidecar"] = "container"
    request: Amounts


class UsageSpan(Record):
    """What the whole pod used on average in one span of time."""

    begin: float
    end: float
    cpu: float = Field(ge=0)
    memory_bytes: int = Field(ge=0)

    @model_validator(mode="after")
    def _time_goes_forward(self) -> Self:
        if not self.end > self.begin:
            raise ValueError("a span of usage ends after it begins")
        return self


PodKind = Literal["run", "shared", "overhead"]
"""run: of one run. shared: gateway, pools, head. overhead: the cluster's own."""


class PodRecord(Record):
    """One pod, from bind to finish."""

    uid: str = Field(min_length=1)
    kind: PodKind
    subject: str | None = None
    """The session that it carried out, for `run`."""
    name: str = ""
    bound_at: float | None = None
    """None = never bound to a node: it held nothing."""
    started_at: float | None = None
    finished_at: float | None = None
    """When the last container ended, or its node was lost. None = not known, or still at work."""
    end_source: Literal["containers", "node_lost", "evicted", "deleted", "unknown"] = "unknown"
    reason: str = ""
    node: NodeFacts | None = None
    containers: tuple[ContainerRequest, ...] = ()
    """In the order of the manifest: an init container runs beside the sidecars before it."""
    overhead: Amounts = Amounts()
    """Of the RuntimeClass."""
    usage: tuple[UsageSpan, ...] = ()
    """In order of time, gaps are filled by the request. None of them = no metrics."""


def _text(value: Any) -> Any:
    if not isinstance(value, str | Decimal):
        raise ValueError('write amounts as quoted text, such as "0.04"')
    return value


HourlyDollars = Annotated[
    Decimal,
    BeforeValidator(_text),
    Field(gt=0, le=10_000, allow_inf_nan=False, decimal_places=9),
]


class HostRate(Record):
    """What a machine that is no node of a cluster costs, or that it is free, and why."""

    per_cpu_hour: HourlyDollars | None = None
    per_gib_hour: HourlyDollars | None = None
    free: bool = False
    reason: str = ""

    @model_validator(mode="after")
    def _zero_is_said_aloud(self) -> Self:
        amounts = self.per_cpu_hour, self.per_gib_hour
        if self.free and (amounts != (None, None) or not self.reason):
            raise ValueError("a free machine has a reason and no amounts")
        if not self.free and None in amounts:
            raise ValueError("give per_cpu_hour and per_gib_hour, or `free: true` with a reason")
        return self


class NodeRecord(Record):
    """How long a node was there. None = not known."""

    facts: NodeFacts
    up_from: float
    up_until: float | None = None


class ComputeProfile(Record):
    """What the machines cost that sandboxes run on."""

    prices: str | None = None
    """Price table of nodes (YAML); None = the one that ships with this project, which is empty."""
    host: HostRate | None = None
    """This machine, for local sandboxes; None = unknown."""
