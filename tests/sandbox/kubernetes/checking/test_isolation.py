"""Canaries show the fence, and whatever they do not show counts as open."""

from __future__ import annotations

import asyncio

import pytest

from fde_ray.model.errors import UserError
from fde_ray.model.planes import PlanesProfile
from fde_ray.sandbox.kubernetes import contract as c
from fde_ray.sandbox.kubernetes.checking import (
    Check,
    isolation_checks,
    lookouts,
    refuse_if_open,
    target_of,
)
from fde_ray.sandbox.kubernetes.faults import ApiFault
from tests.sandbox.kubernetes.checking.cluster import (
    API,
    GRADE,
    PROFILE,
    RUN,
    TARGET,
    Cluster,
    ended,
    saw,
    waiting,
)


async def checks(cluster: Cluster) -> dict[str, Check]:
    found = await isolation_checks(cluster, TARGET, cluster.clock)
    assert cluster.pods == {}, "no canary is left behind"
    return {check.what: check for check in found}


async def test_good_fence_is_shown_for_each_role(cluster: Cluster) -> None:
    found = await checks(cluster)
    assert list(found) == ["fence (solve)", "planes (solve)", "fence (score)", "planes (score)"]
    assert all(check.ok and not check.remedy for check in found.values())
    refuse_if_open(found.values())


async def test_each_role_tries_the_planes_of_the_other_and_the_decoy(cluster: Cluster) -> None:
    await checks(cluster)
    words = {
        pod["metadata"]["labels"][c.LABEL_ROLE]: pod["spec"]["containers"][0]["command"]
        for pod in cluster.made
        if "decoy" not in pod["metadata"]["name"]
    }
    for role, wanted, closed in (("solve", RUN, GRADE), ("score", GRADE, RUN)):
        pairs = list(zip(words[role], words[role][1:], strict=False))
        assert [value for key, value in pairs if key == "--open"] == [wanted]
        tried = [value for key, value in pairs if key == "--closed"]
        assert tried == ["10.1.0.9:9201", closed, API, "169.254.169.254:80"]


async def test_k26_network_without_enforcement_is_refused_with_the_remedy(cluster: Cluster) -> None:
    """A policy that the API takes and nobody enforces."""
    cluster.fates["solve"] = lambda: saw(reached=[API], after=None)
    found = await checks(cluster)
    assert not found["fence (solve)"].ok
    with pytest.raises(UserError, match="network isolation not enforced") as caught:
        refuse_if_open(found.values())
    assert API in str(caught.value)
    assert "Calico" in str(caught.value)


async def test_pod_that_reaches_nothing_proves_nothing(cluster: Cluster) -> None:
    cluster.fates["score"] = lambda: saw(missing=[GRADE], after=None)
    found = await checks(cluster)
    assert (found["fence (score)"].ok, found["planes (score)"].ok) == (False, False)
    assert "fde-ray serve" in found["planes (score)"].remedy
    with pytest.raises(UserError, match="not proven"):
        refuse_if_open(found.values())


async def test_fence_that_never_stood_still_is_not_proven(cluster: Cluster) -> None:
    cluster.fates["solve"] = lambda: saw(after=None)
    check = (await checks(cluster))["fence (solve)"]
    assert not check.ok
    assert "only at times" in check.detail


async def test_planes_out_of_reach_at_the_end_are_told_beside_a_good_fence(
    cluster: Cluster,
) -> None:
    cluster.fates["solve"] = lambda: saw(missing=[RUN])
    found = await checks(cluster)
    assert (found["fence (solve)"].ok, found["planes (solve)"].ok) == (True, False)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format": 1}',
        '{"closed_after_s": NaN}',
        "x" * 100_000,
        "\x00\x1b[2J",
    ],
)
async def test_words_that_are_no_report_prove_nothing(cluster: Cluster, words: str) -> None:
    cluster.fates["solve"] = lambda: ended(words, code=1)
    check = (await checks(cluster))["fence (solve)"]
    assert not check.ok
    assert len(check.detail) < 500
    assert check.detail.isprintable()


@pytest.mark.parametrize("who", ["decoy", "solve"])
async def test_image_that_cannot_run_is_told_at_once(cluster: Cluster, who: str) -> None:
    cluster.fates[who] = lambda: waiting("ErrImageNeverPull", "no such image")
    check = (await checks(cluster))["fence (solve)"]
    assert not check.ok
    assert "ErrImageNeverPull: no such image" in check.detail


async def test_decoy_that_ends_is_no_decoy(cluster: Cluster) -> None:
    cluster.fates["decoy"] = lambda: ended("usage: ...", code=2)
    check = (await checks(cluster))["fence (score)"]
    assert not check.ok
    assert "exit code 2" in check.detail


async def test_canary_that_does_not_start_is_given_up(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookouts, "START_S", 0.0)
    cluster.fates["decoy"] = lambda: waiting("ContainerCreating")
    found = await checks(cluster)
    assert not found["fence (solve)"].ok
    assert "ContainerCreating" in found["fence (solve)"].detail


@pytest.mark.parametrize("status", [403, 422, 500, None])
async def test_canary_that_is_refused_proves_nothing(cluster: Cluster, status: int | None) -> None:
    cluster.refusals["canary-solve"] = ApiFault("exceeded quota", status=status)
    found = await checks(cluster)
    assert "exceeded quota" in found["fence (solve)"].detail
    assert found["fence (score)"].ok


async def test_own_canary_whose_reply_was_lost_is_used(cluster: Cluster) -> None:
    make = cluster._create

    def lost(body: dict[str, object]) -> dict[str, object]:
        make(body)
        raise ApiFault("there already", status=409, reason="AlreadyExists")

    cluster._create = lost  # type: ignore[method-assign]
    assert all(check.ok for check in (await checks(cluster)).values())


async def test_interrupted_look_deletes_its_canaries(cluster: Cluster) -> None:
    begun = asyncio.Event()

    def creating() -> dict[str, object]:
        begun.set()
        return waiting("ContainerCreating")

    cluster.fates["solve"] = creating
    looking = asyncio.create_task(isolation_checks(cluster, TARGET, cluster.clock))
    await begun.wait()
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    assert cluster.pods == {}


def test_a_target_is_made_of_the_profiles_planes() -> None:
    planes = PlanesProfile(
        run="http://10.0.0.7:8080", ingest="http://[fd00::7]:8082", grade="http://10.0.0.7:8081"
    )
    assert target_of(PROFILE, planes, (API,)) == TARGET._replace(run_plane=(RUN, "[fd00::7]:8082"))


@pytest.mark.parametrize(
    ("planes", "told"),
    [
        (PlanesProfile(), "planes.run is not set"),
        (PlanesProfile(run="http://10.0.0.7:8080"), "planes.grade is not set"),
        (PlanesProfile(run="unix:/run/plane", grade="http://10.0.0.7:1"), "planes.run is unix"),
        (PlanesProfile(run="http://plane:80", grade="http://10.0.0.7:1"), "planes.run is http"),
    ],
)
def test_planes_that_pods_cannot_reach_are_refused(planes: PlanesProfile, told: str) -> None:
    with pytest.raises(UserError, match=told):
        target_of(PROFILE, planes, ())
