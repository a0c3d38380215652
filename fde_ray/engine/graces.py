"""How long a plane that is asked to end may still have a model call in flight. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from fde_ray.llm.router import ANY
from fde_ray.metering.ledger import LONGEST_BACKOFF_S, LONGEST_RETRY_AFTER_S, START_WAITS_S
from fde_ray.model.profile import Profile
from fde_ray.model.units import format_duration
from fde_ray.model.wording import counted

MINUTE_S = 60


class LongestCall(NamedTuple):
    """From the first try of a call to its last one.

    Waits for a place, a rate, money or an open breaker are not in it: they have no end of their
    own, nothing is paid for meanwhile, and a call that is cut there is asked again elsewhere.
    """

    tries: int
    try_s: float
    wait_s: float
    """Between two tries, at most."""

    @property
    def seconds(self) -> float:
        """Return it in whole minutes, rounded up."""
        total = self.tries * (self.try_s + sum(START_WAITS_S)) + (self.tries - 1) * self.wait_s
        return float(math.ceil(total / MINUTE_S) * MINUTE_S)

    def __str__(self) -> str:
        tries = counted(self.tries, "try", "tries")
        waits = f", {format_duration(self.wait_s)} between them" if self.tries > 1 else ""
        timeout = format_duration(self.try_s)
        return f"{format_duration(self.seconds)} ({tries} of up to {timeout}{waits})"


def longest_call(profile: Profile) -> LongestCall:
    """Return the longest call that the profile allows to any of its endpoints."""
    endpoints = profile.endpoints
    is_any_named = any(endpoint.match == ANY.match for endpoint in endpoints)
    reached = endpoints if is_any_named else (*endpoints, ANY)
    wait_s = max(LONGEST_BACKOFF_S * 1.5, LONGEST_RETRY_AFTER_S)
    return LongestCall(1 + profile.provider_retries, max(e.timeout for e in reached), wait_s)
