"""The objects of a fence, as a golden file and by what they must and must not allow.

`UPDATE_GOLDEN=1 pytest …` writes the file anew; read the difference before it is committed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from fde_ray.sandbox.kubernetes.fence import (
    FenceSettings,
    as_files,
    as_list,
    as_yaml,
    fence_objects,
    parsed_peer,
)

GOLDEN = Path(__file__).with_name("fence.yaml")
SETTINGS = FenceSettings(
    run_plane=(parsed_peer("10.0.0.7:8080"),),
    ingest=(parsed_peer("[fd00::7]:8082"), parsed_peer("10.0.0.7:8080")),
    grade_plane=(parsed_peer("fde-ray/app=grade-plane:8081"),),
    pods=1000,
    cpu=2001,
    memory_gib=8000,
    images=("registry.example/fde-ray@",),
)


def found(kind: str, settings: FenceSettings = SETTINGS) -> dict[str, dict[str, Any]]:
    """Return the objects of a kind by name."""
    return {
        each["metadata"]["name"]: each for each in fence_objects(settings) if each["kind"] == kind
    }


def test_the_fence_is_the_one_of_the_golden_file() -> None:
    text = as_yaml(fence_objects(SETTINGS))
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_text_list_and_files_hold_the_same_objects() -> None:
    objects = fence_objects(SETTINGS)
    assert list(yaml.safe_load_all(as_yaml(objects))) == objects
    assert as_list(objects)["items"] == objects
    files = dict(as_files(objects))
    assert list(files) == sorted(files)
    assert [yaml.safe_load(text) for text in files.values()] == objects


def test_no_object_is_there_twice() -> None:
    names = [
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
        for each in fence_objects(SETTINGS)
    ]
    assert len(set(names)) == len(names)


def test_two_fences_of_a_cluster_share_priority_classes_and_the_engine_alone() -> None:
    other = SETTINGS.evolve(namespace="other-runs")

    def names(settings: FenceSettings) -> set[tuple[str, str | None, str]]:
        return {
            (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
            for each in fence_objects(settings)
        }

    assert {kind for kind, _, _ in names(SETTINGS) & names(other)} == {
        "Namespace",
        "PriorityClass",
        "ServiceAccount",
    }


def test_policies_let_each_role_reach_its_planes_alone() -> None:
    policies = found("NetworkPolicy")
    deny = policies["fde-ray-deny"]["spec"]
    assert deny == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for name, roles in {
        "fde-ray-solve": ["solve"],
        "fde-ray-grade": ["extract", "score", "exec"],
    }.items():
        spec = policies[name]["spec"]
        (chosen,) = spec["podSelector"]["matchExpressions"]
        assert (chosen["key"], chosen["values"]) == ("fde-ray/role", roles)
        assert spec["policyTypes"] == ["Egress"]
        assert all(rule["ports"] and rule["to"] for rule in spec["egress"])
    to_run = [
        rule["to"][0]["ipBlock"]["cidr"] for rule in policies["fde-ray-solve"]["spec"]["egress"]
    ]
    assert to_run == ["10.0.0.7/32", "fd00::7/128"], "the same address is named once"


def test_nobody_may_preempt_and_grading_goes_first() -> None:
    classes = found("PriorityClass")
    assert {each["preemptionPolicy"] for each in classes.values()} == {"Never"}
    assert classes["fde-ray-grade"]["value"] > classes["fde-ray-solve"]["value"] > 0


def test_quotas_keep_the_reserve_and_add_up_to_the_whole() -> None:
    quotas = {name: each["spec"]["hard"] for name, each in found("ResourceQuota").items()}
    solve, grade = quotas["fde-ray-solve"], quotas["fde-ray-grade"]
    assert (solve["pods"], solve["requests.cpu"], solve["limits.memory"]) == (
        "750",
        "1500",
        "6000Gi",
    )
    assert (grade["pods"], grade["requests.cpu"], grade["limits.memory"]) == (
        "256",
        "501",
        "2000Gi",
    )
    assert quotas["fde-ray-others"] == {"pods": "0"}


def test_the_engine_has_no_right_but_those_it_needs() -> None:
    rules = [rule for role in found("Role").values() for rule in role["rules"]]
    rules += [rule for role in found("ClusterRole").values() for rule in role["rules"]]
    allowed = {
        (resource, verb)
        for rule in rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {each for each in allowed if each[1] not in ("get", "list", "watch")} == {
        ("pods", "create"),
        ("pods", "delete"),
    }
    assert not {"secrets", "pods/exec", "pods/log", "*"} & {resource for resource, _ in allowed}
    everywhere = {
        r for role in found("ClusterRole").values() for r in role["rules"][0]["resources"]
    }
    assert "pods" not in everywhere


def test_no_account_with_rights_lives_where_pods_are_made() -> None:
    """Who may create pods may use every account of their namespace."""
    bound = [
        subject
        for kind in ("RoleBinding", "ClusterRoleBinding")
        for each in found(kind).values()
        for subject in each["subjects"]
    ]
    assert {each["namespace"] for each in bound} == {"fde-ray"}


def test_weak_pods_are_refused_when_the_policy_itself_cannot_be_evaluated() -> None:
    (policy,) = found("ValidatingAdmissionPolicy").values()
    (binding,) = found("ValidatingAdmissionPolicyBinding").values()
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"]["validationActions"] == ["Deny"]
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
