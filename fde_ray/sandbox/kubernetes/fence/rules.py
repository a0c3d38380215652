"""The shape of a rule that the API server evaluates, and what its expressions build on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from fde_ray.sandbox.kubernetes import contract as c


class Weakness(NamedTuple):
    name: str
    """Begins the message."""
    unless: str
    """CEL; the pod has the weakness when it is false."""
    told: str

    @property
    def message(self) -> str:
        return f"{self.name}: {self.told}"


def cel(value: str | Sequence[str]) -> str:
    """Return a literal: JSON's strings and lists are CEL's."""
    return json.dumps(value if isinstance(value, str) else list(value))


def each(holds: str) -> str:
    """Return the expression that something holds for each container `c`."""
    return f"variables.containers.all(c, {holds})"


VARIABLES = {
    "labels": "object.metadata.?labels.orValue({})",
    "role": f"variables.labels[?{cel(c.LABEL_ROLE)}].orValue('')",
    "canary": f"{cel(c.LABEL_CANARY)} in variables.labels",
    "spec": "object.spec",
    "context": "object.spec.?securityContext.orValue({})",
    "containers": "object.spec.containers",
    "volumes": "object.spec.?volumes.orValue([])",
}
"""Name -> CEL, each built on those before it."""
