"""Which sandbox a profile opens, and what is said where it cannot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fde_ray.engine.boxes import BoxScorer
from fde_ray.engine.home import Home, home_of
from fde_ray.engine.sandboxes import opened_sandbox
from fde_ray.model.clock import Clock, SystemClock
from fde_ray.model.errors import SandboxError, UserError
from fde_ray.model.profile import Profile
from fde_ray.sandbox.interface import Sandbox
from fde_ray.sandbox.kubernetes.backend import KubernetesSandbox
from fde_ray.sandbox.kubernetes.scoring import ScoringOnly
from fde_ray.sandbox.local import LocalSandbox
from fde_ray.sandbox.records import Once
from fde_ray.store.objects import FolderStore
from fde_ray.store.runs import RunStore
from tests.sandbox.kubernetes.fake_api_server import FakeApiServer, ScaledClock

PLANES = {"run": "http://10.0.0.1:80", "grade": "http://10.0.0.1:81"}


def pods(home: Path, kubeconfig: str = "/nowhere", **more: Any) -> Profile:
    block = {"namespace": "runs", "image": "x:1", "pull": "Never", "kubeconfig": kubeconfig}
    sandbox = {"runtime": "kubernetes", "kubernetes": block | more.pop("block", {})}
    return Profile.model_validate({"home": str(home), "sandbox": sandbox, "planes": PLANES} | more)


@asynccontextmanager
async def opened(
    profile: Profile, home: Home, clock: Clock, *, unsafe: bool = False, driving: bool = True
) -> AsyncIterator[Sandbox]:
    objects = FolderStore(home.objects)
    async with RunStore(home.database, clock) as store:
        boxes = BoxScorer(store, objects, profile.tenant)
        async with opened_sandbox(
            profile, home, clock, {}, boxes=boxes, unsafe=unsafe, driving=driving
        ) as sandbox:
            yield sandbox
    objects.close()


async def test_a_machine_is_the_default(tmp_path: Path) -> None:
    profile = Profile(home=str(tmp_path))
    home = home_of(profile, {})
    async with opened(profile, home, SystemClock()) as sandbox:
        assert isinstance(sandbox, LocalSandbox)


async def test_a_driver_of_pods_opens_their_cluster(tmp_path: Path) -> None:
    api = FakeApiServer(ScaledClock())
    async with api.running():
        profile = pods(tmp_path, str(api.kubeconfig(tmp_path)))
        home = home_of(profile, {})
        async with opened(profile, home, api.clock) as sandbox:
            assert isinstance(sandbox, KubernetesSandbox)
            assert (await sandbox.probe()).runtime == "kubernetes"


async def test_others_reach_no_cluster(tmp_path: Path) -> None:
    profile = pods(tmp_path)
    home = home_of(profile, {})
    async with opened(profile, home, SystemClock(), driving=False) as sandbox:
        assert isinstance(sandbox, ScoringOnly)
        with pytest.raises(SandboxError, match="belongs to no grade"):
            await sandbox.run_once(Once(argv=("true",)))


@pytest.mark.parametrize(
    ("more", "unsafe", "said"),
    [
        ({}, True, "exclude each other"),
        ({"planes": {}}, False, "set planes.run and planes.grade"),
        ({"planes": {"run": "http://10.0.0.1:80"}}, False, "set planes.run and planes.grade"),
        ({}, False, "there is no kubeconfig at /nowhere"),
    ],
)
async def test_what_cannot_be_opened_is_told_in_a_sentence(
    tmp_path: Path, more: dict[str, Any], unsafe: bool, said: str
) -> None:
    profile = pods(tmp_path, **more)
    home = home_of(profile, {})
    with pytest.raises(UserError, match=said):
        async with opened(profile, home, SystemClock(), unsafe=unsafe):
            pass
