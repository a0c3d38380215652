"""All objects of a fence in an order in which a cluster takes them."""

from __future__ import annotations

from .access import accounts, rights
from .admission import admission
from .network import policies
from .objects import Object
from .settings import FenceSettings
from .space import limit_range, namespaces, owner, priority_classes, quotas


def fence_objects(settings: FenceSettings) -> list[Object]:
    """Return them with the policies before the rights: no moment lets an unfenced pod in."""
    return [
        *namespaces(settings),
        *priority_classes(),
        *admission(settings),
        *policies(settings),
        *quotas(settings),
        limit_range(settings),
        owner(settings),
        *accounts(settings),
        *rights(settings),
    ]
