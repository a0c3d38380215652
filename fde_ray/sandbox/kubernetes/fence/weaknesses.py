"""What no pod of a run namespace may have, one rule each, as the API server evaluates them.

A rule is a CEL expression that holds for good pods, over the variables of `rules`. The server tells
the first rule that does not hold, so they stand from the identity of a pod to its details; what
an account's token adds to a pod is a volume, so that the token is asked for before.
"""

from __future__ import annotations

from .container_rules import credentials, hooks, privileges, programs
from .pod_rules import host, identity, names_and_ends, scheduling, volumes
from .rules import Weakness
from .settings import FenceSettings


def weaknesses(settings: FenceSettings) -> list[Weakness]:
    return [
        *identity(),
        *host(),
        *credentials(),
        *volumes(),
        *privileges(settings),
        *programs(settings),
        *hooks(),
        *scheduling(settings),
        *names_and_ends(),
    ]
