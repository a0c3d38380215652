"""Which sandbox a profile opens, and what is said where it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fde_ray.engine.home import home_of
from fde_ray.engine.sandboxes import opened_sandbox
from fde_ray.model.clock import SystemClock
from fde_ray.model.errors import SandboxError, UserError
from fde_ray.model.profile import Profile
from fde_ray.sandbox.kubernetes.backend import KubernetesSandbox
from fde_ray.sandbox.kubernetes.scoring import ScoringOnly
from fde_ray.sandbox.local import LocalSandbox
from fde_ray.sandbox.records import Once
from tests.sandbox.kubernetes.fake_api_server import FakeApiServer, ScaledClock

PLANES = {"run": "http://10.0.0.1:80", "grade": "http://10.0.0.1:81"}


def pods(home: Path, kubeconfig: str = "/nowhere", **more: Any) -> Profile:
    block = {"namespace": "runs", "image": "x:1", "pull": "Never", "kubeconfig": kubeconfig}
    sandbox = {"runtime": "kubernetes", "kubernetes": block | more.pop("block", {})}
    return Profile.model_validate({"home": str(home), "sandbox": sandbox, "planes": PLANES} | more)


async def test_a_machine_is_the_default(tmp_path: Path) -> None:
    profile = Profile(home=str(tmp_path))
    home = home_of(profile, {})
    async with opened_sandbox(
        profile, home, SystemClock(), {}, unsafe=False, driving=True
    ) as sandbox:
        assert isinstance(sandbox, LocalSandbox)


async def test_a_driver_of_pods_opens_their_cluster(tmp_path: Path) -> None:
    api = FakeApiServer(ScaledClock())
    async with api.running():
        profile = pods(tmp_path, str(api.kubeconfig(tmp_path)))
        home = home_of(profile, {})
        async with opened_sandbox(
            profile, home, api.clock, {}, unsafe=False, driving=True
        ) as sandbox:
            assert isinstance(sandbox, KubernetesSandbox)
            assert (await sandbox.probe()).runtime == "kubernetes"


async def test_others_reach_no_cluster(tmp_path: Path) -> None:
    profile = pods(tmp_path)
    home = home_of(profile, {})
    async with opened_sandbox(
        profile, home, SystemClock(), {}, unsafe=False, driving=False
    ) as sandbox:
        assert isinstance(sandbox, ScoringOnly)
        with pytest.raises(SandboxError, match="scoring to local"):
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
        async with opened_sandbox(profile, home, SystemClock(), {}, unsafe=unsafe, driving=True):
            pass
