"""Sandboxes whose walls are others' work are tried before each sweep; others are only asked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fde_ray.model.errors import UserError
from fde_ray.model.planes import PlanesProfile
from fde_ray.sandbox.kubernetes.backend import KubernetesSandbox
from fde_ray.sandbox.kubernetes.pods import Surroundings
from fde_ray.sandbox.local import LocalSandbox
from fde_ray.sandbox.null import NullSandbox
from fde_ray.sandbox.proving import Fenced, fit_for_sweeps
from fde_ray.sandbox.records import SandboxFacts
from tests.sandbox.kubernetes.checking.cluster import API, PROFILE, Cluster, saw

FACTS = SandboxFacts(runtime="kubernetes", version="v1.34.4 gvisor", limits="pod")
PLANES = PlanesProfile(run="http://10.0.0.7:8080", grade="http://10.0.0.7:8081")


class Walls:
    def __init__(self, told: str = "") -> None:
        self.told, self.tried = told, [PlanesProfile()][:0]

    async def probe(self) -> SandboxFacts:
        return FACTS

    async def prove_isolation(self, planes: PlanesProfile) -> None:
        self.tried.append(planes)
        if self.told:
            raise UserError(self.told)


async def test_walls_are_tried_with_the_planes_of_the_profile() -> None:
    walls = Walls()
    assert await fit_for_sweeps(walls, PLANES) == FACTS  # type: ignore[arg-type]
    assert walls.tried == [PLANES]


async def test_walls_with_holes_are_refused() -> None:
    with pytest.raises(UserError, match="not enforced"):
        await fit_for_sweeps(Walls("network isolation not enforced"), PLANES)  # type: ignore[arg-type]


async def test_pods_that_reach_too_much_hold_no_sweep() -> None:
    cluster = Cluster()
    cluster.fates["solve"] = lambda: saw(reached=[API], after=None)
    pods = SimpleNamespace(
        _profile=PROFILE,
        _around=Surroundings((API,)),
        _client=cluster,
        _clock=SimpleNamespace(now=cluster.clock),
    )
    with pytest.raises(UserError, match="network isolation not enforced: a solve pod reached"):
        await KubernetesSandbox.prove_isolation(pods, PLANES)  # type: ignore[arg-type]


def test_pods_are_tried_and_boxes_of_this_machine_are_not() -> None:
    assert issubclass(KubernetesSandbox, Fenced)
    assert not issubclass(LocalSandbox, Fenced)
    assert not issubclass(NullSandbox, Fenced)
