"""What is attempted, what was heard and seen of it, and what it comes to."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, model_validator

from fde_ray.model.base import Record


class Group(StrEnum):
    """A batch of attempts; the programs of `network`, `host` and `hidden` share a pod."""

    NETWORK = "network"
    HOST = "host"
    HIDDEN = "hidden"
    PLANE = "plane"
    RESOURCES = "resources"
    WORKSPACE = "workspace"
    GRADER = "grader"
    DEADLINE = "deadline"


class Verdict(StrEnum):
    BLOCKED = "blocked"
    """The attempt was refused, and its control was not."""
    CONTAINED = "contained"
    """It took what it could: node and neighbour took no harm, and its end has a type."""
    CONFINED = "confined"
    """The call succeeded in the guest; no packet, mount, process or file of it left the pod."""
    OPEN = "open"
    """It succeeded. A hole."""
    UNPROVEN = "unproven"
    """It failed, but so did its control, or nobody was there to see."""


class Control(StrEnum):
    """What shows that the attempt would succeed without the barrier it is to prove."""

    UNFENCED = "unfenced"
    """The same attempt from a pod that no policy holds."""
    TWIN = "twin"
    """The same attempt from there, at a twin of the target that no policy holds, either."""
    LOOSE = "loose"
    """The same attempt from a pod of root with capabilities and without seccomp, on runc."""
    OWN = "own"
    """The attempt first does the same to something of its own; unless that works, it is broken."""
    LARGER = "larger"
    """The same attempt, at most a tenth over the limit, ends well where the limit is twice that."""
    COLLECTED = "collected"
    """Harmless files beside the traps are collected as they are."""
    UNSAFE = "unsafe"
    """None: it would harm the machine. The attempt says why."""


class Attempt(Record):
    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    group: Group
    what: str
    """A phrase: what the agent tries."""
    expected: Verdict
    control: Control
    unsafe: str = ""
    """Why no control is run; only and always with Control.UNSAFE."""
    call: str = Field(pattern=r"^[a-z_]+\.[a-z_0-9]+$")
    """Program and function, `network.tcp`."""
    target: str = ""
    """Name of an address the runner fills in; empty when there is none."""
    options: dict[str, Any] = {}
    watched: Literal["", "packet", "trace", "log", "plane"] = ""
    """Who looks from outside whether anything of it is to be seen there: `packet` at the decoy
    that is the target, `trace` among the mounts and processes of the node, `log` whether the
    kernel's log that it read is the node's, `plane` in what the run-plane wrote down."""
    limit_s: float = Field(default=15.0, gt=0, le=300)

    @model_validator(mode="after")
    def _check(self) -> Attempt:
        if bool(self.unsafe) != (self.control is Control.UNSAFE):
            raise ValueError("`unsafe` says why there is no control, and only then")
        if self.group is Group.NETWORK and self.control is Control.UNSAFE:
            raise ValueError("an attempt on the network needs a control")
        return self


class Said(Record):
    """The one line that a program prints: a claim, which the judge weighs."""

    id: str
    outcome: Literal["done", "refused", "broken"]
    """broken: it could not be tried, which proves nothing."""
    evidence: str = ""
    took_s: float = 0.0


class Check(Record):
    """Something looked at from outside. holds: None when nobody could look."""

    name: str
    holds: bool | None
    evidence: str = ""


class Facts(Record):
    """All that is known of one attempt in one runtime."""

    said: Said | None = None
    absent: str = ""
    """Why nothing was heard."""
    controls: dict[str, Said] = {}
    """Where the control ran → what was heard from there."""
    checks: tuple[Check, ...] = ()


class Finding(Record):
    attempt: str
    group: Group
    runtime: str
    expected: Verdict
    verdict: Verdict
    reason: str
    control: str
    """How the control went, in a word or two."""

    @property
    def is_as_expected(self) -> bool:
        """Whether it is at least as good as expected: blocked is better than anything."""
        return self.verdict in (self.expected, Verdict.BLOCKED)
