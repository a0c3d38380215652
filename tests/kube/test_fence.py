"""What the fence of a run namespace takes and refuses, as a real API server decides it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.sandbox.kubernetes import contract as c
from fde_ray.sandbox.kubernetes.checking.canaries import decoy, lookout
from fde_ray.sandbox.kubernetes.fence import FenceSettings
from fde_ray.sandbox.kubernetes.fence.weaknesses import weaknesses
from tests.kube.fences import (
    applied,
    leave_admission_alone,
    refusal,
    refusals,
    settings,
    until_admission_works,
)
from tests.kube.kubectl import Kubectl, until
from tests.sandbox.kubernetes.weaker_pods import (
    IMAGE,
    OTHER_ACCOUNT,
    WEAKER,
    Change,
    good_pod,
    rule_of,
    weaker,
)

pytestmark = pytest.mark.kube


@contextmanager
def standing(kubectl: Kubectl) -> Iterator[FenceSettings]:
    with applied(kubectl, settings()) as chosen:
        until_admission_works(kubectl, weaker(good_pod(chosen.namespace), "hostAliases"))
        kubectl.run("create", "serviceaccount", OTHER_ACCOUNT, "-n", chosen.namespace)
        yield chosen


@pytest.fixture(scope="module")
def common_fence(whole_lab: Kubectl) -> Iterator[FenceSettings]:
    """A fence that no test changes, and that no pod stands in."""
    with standing(whole_lab) as chosen:
        yield chosen


@pytest.fixture
def fence(kubectl: Kubectl) -> Iterator[FenceSettings]:
    """A fence of the test's own."""
    with standing(kubectl) as chosen:
        yield chosen


def weaker_pods(fence: FenceSettings) -> dict[str, dict[str, Any]]:
    good = good_pod(fence.namespace)
    return {name: weaker(good, name) for name in WEAKER}


def test_each_weaker_pod_is_refused_by_its_own_rule(kubectl: Kubectl, fence: FenceSettings) -> None:
    leave_admission_alone(kubectl, fence)
    rules = {rule.name: rule for rule in weaknesses(fence)}
    pods = weaker_pods(fence)
    told = refusals(kubectl, [good_pod(fence.namespace), *pods.values()])
    wrong = {
        name: told.get(pod["metadata"]["name"])
        for name, pod in pods.items()
        if not told.get(pod["metadata"]["name"], "").endswith(f": {rules[rule_of(name)].message}")
    }
    assert wrong == {}
    assert good_pod(fence.namespace)["metadata"]["name"] not in told


def test_whole_fence_takes_run_pods_and_nothing_weaker(
    kubectl: Kubectl, common_fence: FenceSettings
) -> None:
    good = [
        good_pod(common_fence.namespace),
        good_pod(common_fence.namespace, role="extract", subject="ab12.2"),
    ]
    pods = weaker_pods(common_fence)
    told = refusals(kubectl, [*good, *pods.values()])
    assert set(told) == {pod["metadata"]["name"] for pod in pods.values()}


def test_server_has_no_doubt_about_any_rule(kubectl: Kubectl, common_fence: FenceSettings) -> None:
    name = f"fde-ray-pods.{common_fence.namespace}"
    found = kubectl.get("default", "validatingadmissionpolicy", name)
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
    assert found["status"]["typeChecking"] == {}


def test_pod_that_is_there_keeps_its_labels_size_and_programs(
    kubectl: Kubectl, fence: FenceSettings
) -> None:
    pod = good_pod(fence.namespace)
    name = pod["metadata"]["name"]
    kubectl.create(pod)
    here = ("-n", fence.namespace)

    def patched(subresource: str, spec: object) -> str:
        patch = json.dumps({"spec": spec})
        part = ("--subresource", subresource)
        return kubectl.attempt("patch", "pod", name, *here, *part, "-p", patch).stderr

    changes = ("role=score", "shard=1", "run-", "sweep=another", "canary=true")
    for label in (f"fde-ray/{change}" for change in changes):
        done = kubectl.attempt("label", "pod", name, *here, "--overwrite", label)
        assert "request: changed_labels: " in done.stderr, label
    assert kubectl.attempt("label", "pod", name, *here, "seen=yes").returncode == 0
    spy = {"name": "spy", "image": "localhost/fde-ray-lab/base:1", "command": ["sleep", "600"]}
    told = patched("ephemeralcontainers", {"ephemeralContainers": [spy]})
    assert "PodSecurity" in told or "request: ephemeral_containers: " in told
    leave_admission_alone(kubectl, fence)
    told = patched("ephemeralcontainers", {"ephemeralContainers": [spy]})
    assert "request: ephemeral_containers: " in told
    size = {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}
    told = patched("resize", {"containers": [{"name": "agent", "resources": size}]})
    assert "request: resize: " in told


def test_canary_is_taken_and_may_be_nothing_else(
    kubectl: Kubectl, common_fence: FenceSettings
) -> None:
    profile = KubernetesProfile(namespace=common_fence.namespace, image=IMAGE, pull="Never")
    bait = decoy("bait", profile)
    seen = lookout("seen", "solve", profile, wanted=["10.0.0.7:1"], forbidden=[], limit_s=5)
    wrong: dict[str, Change] = {
        "shard": lambda pod: pod["metadata"]["labels"].update({c.LABEL_SHARD: "3"}),
        "containers": lambda pod: pod["spec"]["containers"][0].update(name=c.AGENT),
        "command": lambda pod: pod["spec"]["containers"][0].update(command=["sleep", "9"]),
        "environment": lambda pod: pod["spec"]["containers"][0].update(
            env=[{"name": c.CONFIG_VARIABLE, "value": "{}"}]
        ),
        "priority_class": lambda pod: pod["spec"].update(priorityClassName=c.PRIORITY_SOLVE),
    }
    changed = [copy.deepcopy(seen) for _ in wrong]
    for pod, (name, change) in zip(changed, wrong.items(), strict=True):
        pod["metadata"]["name"] = name.replace("_", "-")
        change(pod)
    told = refusals(kubectl, [bait, seen, *changed])
    assert set(told) == {name.replace("_", "-") for name in wrong}
    rules = {rule.name: rule.message for rule in weaknesses(common_fence)}
    rules["environment"] = rules["secret_outside_shim"]
    assert all(told[name.replace("_", "-")].endswith(rules[name]) for name in wrong)


def test_pod_that_wants_to_preempt_is_refused(
    kubectl: Kubectl, common_fence: FenceSettings
) -> None:
    pod = good_pod(common_fence.namespace)
    pod["spec"]["preemptionPolicy"] = "PreemptLowerPriority"
    assert "computed Never" in refusal(kubectl, pod)


def test_pod_of_no_class_of_ours_has_no_quota(kubectl: Kubectl, fence: FenceSettings) -> None:
    kubectl.run("delete", "validatingadmissionpolicybinding", f"fde-ray-pods.{fence.namespace}")
    pod = good_pod(fence.namespace)
    del pod["spec"]["priorityClassName"]
    exceeded = "exceeded quota: fde-ray-others"
    until(lambda: exceeded in refusal(kubectl, pod), 20, "the quota to be what refuses it")


def test_pod_beyond_the_limits_of_one_is_refused(
    kubectl: Kubectl, common_fence: FenceSettings
) -> None:
    told = refusal(kubectl, good_pod(common_fence.namespace, cpu=17))
    assert "maximum cpu usage per Pod is 16" in told


def test_fence_may_ask_for_user_namespaces(kubectl: Kubectl) -> None:
    with applied(kubectl, settings(user_namespaces=True)) as chosen:
        weak = good_pod(chosen.namespace)
        until_admission_works(kubectl, weak)
        assert "request: user_namespace: " in refusal(kubectl, weak)
        assert refusal(kubectl, good_pod(chosen.namespace, user_namespaces=True)) == ""


MAY = [
    *(f"{verb} pods" for verb in ("create", "get", "list", "watch", "delete")),
    "get configmaps/fde-ray-owner", "list resourcequotas", "list networkpolicies.networking.k8s.io",
    "get nodes", "get runtimeclasses.node.k8s.io", "get priorityclasses.scheduling.k8s.io",
    "get validatingadmissionpolicies.admissionregistration.k8s.io",
]  # fmt: skip
MAY_NOT = [
    "update pods", "patch pods", "deletecollection pods", "create pods/exec", "create pods/attach",
    "create pods/portforward", "get pods/log", "update pods/ephemeralcontainers", "get secrets",
    "list secrets", "create secrets", "get configmaps", "create configmaps",
    "delete configmaps/fde-ray-owner", "create serviceaccounts/token", "impersonate users",
    "delete networkpolicies.networking.k8s.io", "update resourcequotas",
    "create rolebindings.rbac.authorization.k8s.io", "delete namespaces", "delete nodes",
    "get nodes/proxy", "delete validatingadmissionpolicies.admissionregistration.k8s.io",
]  # fmt: skip


def review(account: str, namespace: str, asked: str) -> dict[str, Any]:
    """Ask whether an account may do this: `verb resource.group/name`, or a part for the name."""
    verb, what = asked.split()
    resource, _, rest = what.partition("/")
    resource, _, group = resource.partition(".")
    key = "name" if rest.startswith("fde-ray") else "subresource"
    attributes = {"verb": verb, "resource": resource, "group": group, "namespace": namespace}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{account}",
            "groups": [
                "system:serviceaccounts",
                "system:authenticated",
                f"system:serviceaccounts:{account.partition(':')[0]}",
            ],
            "resourceAttributes": attributes | ({key: rest} if rest else {}),
        },
    }


def allowed(kubectl: Kubectl, account: str, namespace: str, *asked: str) -> list[str]:
    """Return what of it the account may do."""
    items = [review(account, namespace, one) for one in asked]
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    said = kubectl.run(
        "create", "-f", "-", "-o", "jsonpath={.status.allowed}{'\\n'}", text=document
    )
    answers = said.split()
    return [one for one, answer in zip(asked, answers, strict=True) if answer == "true"]


def test_engine_may_do_what_it_needs_and_no_more(
    kubectl: Kubectl, common_fence: FenceSettings
) -> None:
    fence = common_fence
    account = f"{fence.engine_namespace}:{fence.engine_account}"
    assert allowed(kubectl, account, fence.namespace, *MAY, *MAY_NOT) == MAY
    elsewhere = [f"{verb} pods" for verb in ("create", "get", "list", "watch", "delete")]
    for namespace in (fence.engine_namespace, "default", "kube-system"):
        assert allowed(kubectl, account, namespace, *elsewhere) == []
    assert allowed(kubectl, account, "default", "get services") == []


def test_account_of_run_pods_may_do_nothing(kubectl: Kubectl, common_fence: FenceSettings) -> None:
    account = f"{common_fence.namespace}:default"
    assert allowed(kubectl, account, common_fence.namespace, *MAY, *MAY_NOT) == []
