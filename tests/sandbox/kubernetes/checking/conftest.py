from __future__ import annotations

import pytest

from fde_ray.sandbox.kubernetes.checking import lookouts
from tests.sandbox.kubernetes.checking.cluster import Cluster, admission_refusal


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A good cluster, looked at without pauses."""
    monkeypatch.setattr(lookouts, "POLL_S", 0.0)
    found = Cluster()
    found.refusals["weak pod"] = admission_refusal()
    return found
