"""The suite from its first namespace to its findings, and what it leaves when it cannot go on."""

from __future__ import annotations

import asyncio

import pytest

from fde_ray.model.errors import UserError
from fde_ray.sandbox.probes.catalogue import ATTEMPTS
from fde_ray.sandbox.probes.plane import proven_plane
from fde_ray.sandbox.probes.records import Finding
from fde_ray.sandbox.probes.running import Options, Suite
from tests.sandbox.probes.builders import line
from tests.sandbox.probes.fake_cluster import FakeCluster

OPTIONS = Options("localhost/x:1", {"gvisor": "gvisor"}, listen="127.0.0.1")
SOME = [a for a in ATTEMPTS if a.id in ("set_uid", "kexec", "api_service", "metadata")]
HEARD = [line("refused", name=name) for name in ("set_uid", "kexec", "api_service")]
CONTROLS = [line("done", name=name) for name in ("set_uid", "api_service")]


async def findings(cluster: FakeCluster) -> dict[str, Finding]:
    suite = Suite(cluster, "https://10.9.0.1:6443", OPTIONS, lambda _: None)
    return {each.attempt: each for each in await suite.run(SOME)}


async def test_each_attempt_ends_in_a_finding() -> None:
    found = await findings(FakeCluster({"gvisor": HEARD, "free": CONTROLS}))
    assert {name: each.verdict.value for name, each in found.items()} == {
        "api_service": "blocked",
        "metadata": "unproven",
        "set_uid": "blocked",
        "kexec": "blocked",
    }
    assert found["metadata"].reason == "there is no metadata to try it on"
    assert found["kexec"].control.startswith("not run:")


async def test_controls_that_fail_prove_nothing() -> None:
    failed = [line("refused", name=name) for name in ("set_uid", "api_service")]
    found = await findings(FakeCluster({"gvisor": HEARD, "free": failed}))
    assert found["api_service"].verdict == found["set_uid"].verdict == "unproven"


async def test_nothing_of_the_suite_is_left() -> None:
    cluster = FakeCluster({"gvisor": HEARD, "free": CONTROLS})
    await findings(cluster)
    assert not [name for name in cluster.things if "/pods/" in name]
    left = [name for name in cluster.things if name.startswith("/api/v1/namespaces/")]
    assert not [name for name in left if name.count("/") == 4]
    assert not [name for name in cluster.things if "admission" in name]


async def test_a_cluster_that_takes_no_policy_is_left_as_it_was() -> None:
    cluster = FakeCluster({}, refuses=("NetworkPolicy",))
    with pytest.raises(UserError, match="NetworkPolicy"):
        await findings(cluster)
    assert not [name for name in cluster.things if name.count("/") == 4]


async def test_pods_that_are_not_taken_make_findings_unproven() -> None:
    neighbour_and_twin = 2
    found = await findings(FakeCluster({}, pods=neighbour_and_twin))
    assert {each.verdict.value for each in found.values()} == {"unproven"}


async def test_the_run_plane_is_a_process_that_ends_with_the_suite() -> None:
    async with asyncio.timeout(60):
        async with proven_plane("127.0.0.1") as plane:
            view = await plane.view()
            assert view["subject"] == plane.loot["subject"]
            assert set(view["turns"]) == {plane.loot["subject"], plane.loot["other_subject"]}
            process = plane._process
        assert process.returncode is not None


async def test_a_run_plane_that_cannot_listen_is_told_in_one_line() -> None:
    with pytest.raises(UserError, match="the run-plane did not start"):
        async with proven_plane("192.0.2.1"):
            pass
