"""Each fault of a cluster fails its own check, and says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fde_ray.sandbox.kubernetes.checking import Check, cluster_checks
from fde_ray.sandbox.kubernetes.faults import ApiFault
from fde_ray.sandbox.kubernetes.fence import grading_of
from tests.sandbox.kubernetes.checking.cluster import PROFILE, TARGET, Cluster, waiting

GRADING = grading_of(PROFILE, 4, has_programs=True)

_SCHEDULING = "/apis/scheduling.k8s.io/v1/priorityclasses"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_POLICY = f"{_ADMISSION}/validatingadmissionpolicies/fde-ray-pods.fde-ray-runs"
_BINDING = f"{_ADMISSION}/validatingadmissionpolicybindings/fde-ray-pods.fde-ray-runs"
_NAMESPACE = "/api/v1/namespaces/fde-ray-runs"
_OWNER = f"{_NAMESPACE}/configmaps/fde-ray-owner"


async def checks(cluster: Cluster) -> dict[str, Check]:
    found = await cluster_checks(cluster, TARGET, GRADING, cluster.clock)
    assert len({check.what for check in found}) == len(found)
    return {check.what: check for check in found}


async def test_good_cluster_passes_every_check(cluster: Cluster) -> None:
    found = await checks(cluster)
    assert [check for check in found.values() if not check.ok or check.remedy] == []
    assert list(found) == [
        "versions", "namespace", "runtime class", "priority classes", "network policies",
        "admission", "quota", "owner", "reserve", "rights", "no more rights", "image",
        "fence (solve)", "planes (solve)", "fence (score)", "planes (score)",
        "clock of the API server", "clock of run pods",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "able", "ok", "said"),
    [
        (False, [True], True, "user_namespaces: true"),
        (False, [True, False], True, None),
        (False, [False], True, None),
        (True, [False, False], False, "no node gives its pods user namespaces"),
        (True, [True, False], True, None),
    ],
)
async def test_user_namespaces_are_told_of_where_the_runtime_has_them(
    cluster: Cluster, asked: bool, able: list[bool], ok: bool, said: str | None
) -> None:
    listed = cluster.objects["/api/v1/nodes"]
    handlers = [
        [{"name": "other", "features": {"userNamespaces": True}},
         {"name": "runsc", "features": {"userNamespaces": is_able}}]
        for is_able in able
    ]  # fmt: skip
    node = listed["items"][0]
    listed["items"] = [
        node | {"status": node["status"] | {"runtimeHandlers": one}} for one in handlers
    ]
    target = TARGET._replace(profile=TARGET.profile.evolve(user_namespaces=asked))
    found = {c.what: c for c in await cluster_checks(cluster, target, GRADING, cluster.clock)}
    check = found["runtime class"]
    assert check.ok is ok
    assert said in check.detail if said else check.detail == "gvisor, handler runsc"
    assert bool(check.remedy) is not ok


async def test_one_of_a_thing_is_told_as_one(cluster: Cluster) -> None:
    one = GRADING._replace(at_once=1)
    found = {c.what: c for c in await cluster_checks(cluster, TARGET, one, cluster.clock)}
    assert ", 1 node with " in found["versions"].detail
    assert found["reserve"].detail.endswith(", 1 is wanted")


def without(path: str) -> Callable[[Cluster], Any]:
    return lambda cluster: cluster.objects.pop(path)


def with_(path: str, **fields: Any) -> Callable[[Cluster], Any]:
    return lambda cluster: cluster.objects[path].update(fields)


def _no_label(cluster: Cluster) -> None:
    cluster.objects[_NAMESPACE]["metadata"]["labels"] = {}


def _node_down(cluster: Cluster) -> None:
    node = cluster.objects["/api/v1/nodes"]["items"][0]
    cluster.objects["/api/v1/nodes"]["items"] = [
        node | {"status": node["status"] | {"conditions": []}}
    ]


def _weak_pods_pass(cluster: Cluster) -> None:
    del cluster.refusals["weak pod"]


def _keeps(**hard: str) -> Callable[[Cluster], Any]:
    def change(cluster: Cluster) -> None:
        quotas = {each["metadata"]["name"]: each for each in cluster.listed("ResourceQuota")}
        quotas["fde-ray-grade"]["spec"]["hard"].update(
            {key.replace("_", "."): value for key, value in hard.items()}
        )

    return change


def _refused_by_another(cluster: Cluster) -> None:
    cluster.refusals["weak pod"] = ApiFault("violates PodSecurity", status=403)


def _may_nothing(cluster: Cluster) -> None:
    cluster.may = lambda _: False


FAULTS: dict[str, tuple[str, Callable[[Cluster], Any], str]] = {
    "old server": ("versions", with_("/version", gitVersion="v1.29.9"), "1.30 or newer"),
    "odd version": ("versions", with_("/version", gitVersion="dev"), "1.30 or newer"),
    "no node": ("versions", with_("/api/v1/nodes", items=[]), "add a node"),
    "no node is ready": ("versions", _node_down, "none is ready"),
    "no namespace": ("namespace", without(_NAMESPACE), "cluster render"),
    "no standard": ("namespace", _no_label, "cluster render"),
    "no runtime class": (
        "runtime class",
        without("/apis/node.k8s.io/v1/runtimeclasses/gvisor"),
        "install gVisor",
    ),
    "no priority class": (
        "priority classes", without(f"{_SCHEDULING}/fde-ray-grade"), "cluster render",
    ),
    "class that preempts": (
        "priority classes",
        with_(f"{_SCHEDULING}/fde-ray-grade", preemptionPolicy="PreemptLowerPriority"),
        "delete it",
    ),
    "solving goes first": (
        "priority classes", with_(f"{_SCHEDULING}/fde-ray-solve", value=9000), "delete both",
    ),
    "policy lost": (
        "network policies", lambda cluster: cluster.listed("NetworkPolicy").pop(), "fde-ray-grade",
    ),
    "policy that opens": (
        "network policies",
        lambda cluster: cluster.listed("NetworkPolicy").append({"metadata": {"name": "open"}}),
        "open may open",
    ),
    "no admission policy": ("admission", without(_POLICY), "cluster render"),
    "admission policy bound to nothing": ("admission", without(_BINDING), "cluster render"),
    "rules that do not compile": (
        "admission",
        with_(_POLICY, status={"typeChecking": {"expressionWarnings": [{}, {}]}}),
        "warns of 2 rules",
    ),
    "a rule that does not compile": (
        "admission",
        with_(_POLICY, status={"typeChecking": {"expressionWarnings": [{}]}}),
        "warns of 1 rule;",
    ),
    "weak pods pass": ("admission", _weak_pods_pass, "a weaker pod was taken"),
    "refused by another rule": ("admission", _refused_by_another, "violates PodSecurity"),
    "no quota": (
        "quota", lambda cluster: cluster.listed("ResourceQuota").clear(), "fde-ray-solve",
    ),
    "no quota, so no reserve": (
        "reserve", lambda cluster: cluster.listed("ResourceQuota").clear(), "cluster render",
    ),
    "reserve without the exec pods": (
        "reserve",
        _keeps(pods="17"),
        "and 11 are kept for grading; give `cluster render` --grading-pods 12, or set",
    ),
    "cores for no extractor": (
        "reserve", _keeps(requests_cpu="11", limits_cpu="11500m"), "take 11 cores without",
    ),
    "memory for no program": (
        "reserve", _keeps(limits_memory="3145728Ki"), "take 3 GiB without",
    ),
    "quota that is no quantity": ("reserve", _keeps(pods="many"), "makes no sense"),
    "no owner": ("owner", without(_OWNER), "cluster render"),
    "no rights": ("rights", _may_nothing, "create pods"),
    "no image": (
        "image",
        lambda cluster: cluster.fates.update(decoy=lambda: waiting("ErrImageNeverPull")),
        "sandbox_images/",
    ),
    "server's clock ahead": (
        "clock of the API server",
        lambda cluster: setattr(cluster, "server_ahead_s", 90.0),
        "s ahead of",
    ),
    "server's clock behind": (
        "clock of the API server",
        lambda cluster: setattr(cluster, "server_ahead_s", -90.0),
        "s behind",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
async def test_fault_fails_its_check_and_says_what_to_do(cluster: Cluster, name: str) -> None:
    what, damage, told = FAULTS[name]
    damage(cluster)
    check = (await checks(cluster))[what]
    assert not check.ok
    assert check.remedy
    assert told in check.told


async def test_clock_of_pods_is_held_against_ours(cluster: Cluster) -> None:
    cluster.now += 600
    check = (await checks(cluster))["clock of run pods"]
    assert not check.ok
    assert "behind this machine's" in check.detail


async def test_operator_who_may_do_more_is_told_and_not_failed(cluster: Cluster) -> None:
    cluster.may = lambda _: True
    check = (await checks(cluster))["no more rights"]
    assert check.ok
    assert "create pods/exec" in check.detail


@pytest.mark.parametrize("reply", [{}, {"items": None}, {"items": [{}]}, {"metadata": 3}])
async def test_answers_that_make_no_sense_fail_and_end_nothing(
    cluster: Cluster, reply: dict[str, Any]
) -> None:
    for path in list(cluster.objects):
        cluster.objects[path] = reply
    found = await checks(cluster)
    assert not found["namespace"].ok
    assert found["fence (solve)"].ok


async def test_server_that_answers_nothing_fails_every_check(cluster: Cluster) -> None:
    async def silence(*_: object, **__: object) -> dict[str, Any]:
        raise ApiFault("the API server did not answer: timeout")

    cluster.request = silence  # type: ignore[method-assign]
    found = await checks(cluster)
    assert not any(check.ok for check in found.values())
