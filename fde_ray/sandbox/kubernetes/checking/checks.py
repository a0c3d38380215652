"""One thing that was looked at in a cluster, and what to do when it is not as it should be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fde_ray.model.errors import UserError


class Check(NamedTuple):
    """detail: what was seen. remedy: "" when all is well. isolation: a failure stops sweeps."""

    what: str
    ok: bool
    detail: str
    remedy: str = ""
    isolation: bool = False

    @property
    def told(self) -> str:
        return f"{self.detail}; {self.remedy}" if self.remedy else self.detail


def refuse_if_open(checks: Iterable[Check]) -> None:
    """UserError when an isolation check failed: no agent is started behind a fence with holes."""
    for check in checks:
        if check.isolation and not check.ok:
            raise UserError(f"network isolation not enforced: {check.told}")
