"""The SweepSpec: the science of a sweep, and the only input to ids.

`documents.parse_document` reads it from YAML and names the line at fault. Nothing here says where
or how a sweep runs; that is the operator's `profile`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from .base import Record
from .states import Channel, ConditionKind
from .units import Duration, Size, parse_duration, parse_size

NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"
Name = Annotated[str, Field(pattern=NAME)]
CaseId = Annotated[str, Field(pattern=r"^[0-9]{3}p?$")]
ModelName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}$")]
"""A model in litellm's form, `provider/model`; `offline/...` is answered without any model."""

PANEL_SIZE = 5


class Condition(Record):
    """What a run may know. `percent` is set for oracle only: an integer from 0 to 100."""

    kind: ConditionKind
    percent: int | None = Field(default=None, ge=0, le=100)

    @model_validator(mode="after")
    def _percent_belongs_to_oracle(self) -> Self:
        if (self.kind is ConditionKind.ORACLE) != (self.percent is not None):
            raise ValueError("oracle needs a percent (oracle:25), the other conditions have none")
        return self

    @property
    def label(self) -> str:
        return self.kind.value if self.percent is None else f"{self.kind.value}:{self.percent}"

    @classmethod
    def parse(cls, value: Any) -> Any:
        """Turn `oracle:25` or `hidden` into fields; anything else passes on to validation."""
        if not isinstance(value, str):
            return value
        kind, _, percent = value.partition(":")
        if kind not in set(ConditionKind):
            known = ", ".join(k.value for k in ConditionKind)
            raise ValueError(f"unknown condition {value[:40]!r}; known: {known} (oracle:25)")
        if percent and not re.fullmatch(r"[0-9]{1,3}", percent):
            raise ValueError(
                f"oracle takes an integer percent such as oracle:25, not {value[:40]!r}"
            )
        return {"kind": kind, "percent": int(percent) if percent else None}


ConditionField = Annotated[
    Condition,
    BeforeValidator(Condition.parse),
    PlainSerializer(lambda c: c.label),
    WithJsonSchema({"type": "string", "examples": ["hidden", "oracle:25"]}),
]


class System(Record):
    """A scaffold with a model: what is evaluated. `name` is how reports call it."""

    name: Name
    scaffold: Name
    model: ModelName
    channel: Channel | None = None
    """None = the scaffold's own (protocol rule 9)."""
    settings: dict[str, str | int | float | bool] = {}


class Limits(Record):
    """Limits of one solving run."""

    time: Duration = 43_200.0
    rounds: int = Field(default=30, ge=0, le=1000)
    pushes: int = Field(default=3, ge=0, le=100)
    steps: int | None = Field(default=None, ge=1)
    """Agent steps; None = no cap."""
    pause_cap: Duration = 21_600.0
    cpu: float = Field(default=2.0, gt=0, le=256)
    memory: Size = parse_size("4GiB")
    disk: Size = parse_size("10GiB")
    processes: int = Field(default=512, ge=8, le=100_000)
    archive: Size = parse_size("2GiB")
    """The largest workspace that is collected."""

    @model_validator(mode="after")
    def _limits_are_positive(self) -> Self:
        for name in ("time", "memory", "disk", "archive"):
            if not getattr(self, name) > 0 or math.isinf(getattr(self, name)):
                raise ValueError(f"{name} must be more than 0")
        return self


class Customer(Record):
    model: ModelName
    temperature: float | None = None
    """None = unset, as the paper."""
    max_tokens: int = Field(default=10_000, ge=1)
    failure: Literal["placeholder", "infra"] = "placeholder"
    """What follows when a call's retries are spent (protocol rule 14)."""


class Panel(Record):
    """The extraction routes in order, and the switches of grading."""

    models: tuple[ModelName, ...] = Field(min_length=PANEL_SIZE, max_length=PANEL_SIZE)
    panel_stop: Literal["three_agree", "all"] = "three_agree"
    passthrough: bool = False
    evaluator_exception: Literal["fault", "zero"] = "fault"
    time: Duration = parse_duration("30m")
    steps: int = Field(default=60, ge=1)


class SweepSpec(Record):
    """What is measured: cases x conditions x systems x repeats."""

    schema_: Literal["fde_ray.sweep/1"] = Field(alias="schema", default="fde_ray.sweep/1")
    name: Name
    cases: tuple[CaseId, ...] = Field(min_length=1)
    systems: tuple[System, ...] = Field(min_length=1)
    conditions: tuple[ConditionField, ...] = Field(min_length=1)
    repeats: int = Field(default=3, ge=1, le=100)
    limits: Limits = Limits()
    customer: Customer
    panel: Panel
    detectors: tuple[ModelName, ...] | None = Field(
        default=None, min_length=PANEL_SIZE, max_length=PANEL_SIZE
    )
    """The five question detectors; None = the panel's models (protocol rule 8)."""
    judges: tuple[ModelName, ...] | None = Field(
        default=None, min_length=PANEL_SIZE, max_length=PANEL_SIZE
    )
    """The five coverage judges; None = the panel's models (protocol rule 26)."""
    prompt_pack: Name = "builtin"
    budget_usd_per_run: float | None = Field(default=None, gt=0)
    """None = off, as in the paper."""
    series: str = Field(default="", max_length=63)
    """Set it to run an equal campaign again on purpose."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        for what, names in (
            ("case", self.cases),
            ("system", [s.name for s in self.systems]),
            ("condition", [c.label for c in self.conditions]),
        ):
            twice = {n for n in names if list(names).count(n) > 1}
            if twice:
                raise ValueError(f"{what} {sorted(twice)[0]!r} is listed twice")
        return self

    @property
    def detector_models(self) -> tuple[str, ...]:
        return self.detectors or self.panel.models

    @property
    def judge_models(self) -> tuple[str, ...]:
        return self.judges or self.panel.models

    def cells(self) -> Iterator[Cell]:
        """Yield every planned run once, repeats outermost so that early results span all cases."""
        for repeat in range(1, self.repeats + 1):
            for case_id in self.cases:
                for condition in self.conditions:
                    for system in self.systems:
                        yield Cell(case_id, condition, system, repeat)


class Cell(NamedTuple):
    """One planned run of a sweep."""

    case_id: str
    condition: Condition
    system: System
    repeat: int
