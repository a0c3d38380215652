"""The pods of runs are what the golden files say, to the last field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from fde_ray.model.errors import SandboxError
from fde_ray.model.ids import RunId, shard_of
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.model.profile import SandboxProfile
from fde_ray.sandbox.kubernetes import names
from fde_ray.sandbox.kubernetes.pods import Surroundings, deadline_s, run_pod
from fde_ray.sandbox.records import MountPoint
from tests.sandbox.kubernetes.stage import LIMITS, RUN, session

GOLDEN = Path(__file__).parent / "golden"
DIGEST = "registry.example/fde-ray/agent@sha256:" + "0" * 64
PLAIN = KubernetesProfile(image=DIGEST)
RICH = KubernetesProfile.model_validate(
    {
        "image": "localhost/agent:1",
        "pull": "Never",
        "namespace": "pods-of-others",
        "runtime_class": None,
        "user_namespaces": True,
        "node_selector": {"pool": "runs"},
        "tolerations": [{"key": "runs", "operator": "Exists", "effect": "NoSchedule"}],
        "queue": "evaluations",
        "forbidden": ["10.0.0.9:80", "10.250.0.2:9000"],
        "shim_cpu": 0.1,
    }
)
EXTRACTION = session(
    f"{RUN}/{'cd' * 16}/0.1",
    sweep="main",
    mounts=(
        MountPoint(at="/workspace", read_only=True),
        MountPoint(at="/output"),
    ),
)
CASES = {
    "solve": (session(), PLAIN, Surroundings(("10.96.0.1:443",))),
    "extract": (EXTRACTION, RICH, Surroundings(owner_uid="u-1")),
}


@pytest.mark.parametrize("name", CASES)
def test_pod_is_as_the_golden_file_says(name: str) -> None:
    """When it differs on purpose: write `text` there, and read the difference line by line."""
    pod = run_pod(*CASES[name])
    (config,) = pod["spec"]["containers"][0]["env"]
    config["value"] = json.loads(config["value"])
    text = json.dumps(pod, indent=2) + "\n"
    assert text == (GOLDEN / f"{name}.json").read_text()


def test_a_scoring_pod_has_one_volume_that_its_programs_only_read() -> None:
    """And, like every grading pod, its place among the reserved ones."""
    grader = (MountPoint(at="/grader", read_only=True),)
    start = session(f"{RUN}/{'cd' * 16}/score.1", role="score", mounts=grader)
    pod = run_pod(start, PLAIN, Surroundings(("10.96.0.1:443",)))
    labels, spec = pod["metadata"]["labels"], pod["spec"]
    assert (labels["fde-ray/role"], labels["fde-ray/run"]) == ("score", RUN)
    assert spec["priorityClassName"] == "fde-ray-grade"
    shim, agent = spec["containers"]
    assert "env" not in agent
    assert {"name": "m0", "mountPath": "/grader", "readOnly": True} in agent["volumeMounts"]
    assert {"name": "m0", "mountPath": "/box/m0"} in shim["volumeMounts"]
    assert json.loads(shim["env"][0]["value"])["role"] == "score"


def test_programs_of_grades_run_in_pods_unless_an_operator_says_otherwise() -> None:
    assert PLAIN.scoring == "pods"


def test_spec_label_tells_specs_apart_and_secrets_not() -> None:
    def label(**more: Any) -> str:
        pod = run_pod(session(**more), PLAIN, Surroundings())
        return str(pod["metadata"]["labels"]["fde-ray/spec"])

    assert label() == label(secret="another")
    assert label() != label(limits=LIMITS.evolve(cpu=1.0))
    assert label() != label(plane_socket="http://10.250.0.3:9000")
    assert len(label()) == 12


def test_sweep_is_a_label_that_changes_no_spec() -> None:
    def labels(sweep: str | None) -> dict[str, str]:
        found: dict[str, str] = run_pod(session(sweep=sweep), PLAIN, Surroundings())["metadata"][
            "labels"
        ]
        return found

    assert labels("main")["fde-ray/sweep"] == "main"
    assert "fde-ray/sweep" not in labels(None)
    assert labels("main")["fde-ray/spec"] == labels(None)["fde-ray/spec"]
    odd = labels("a sweep of " + "x" * 200)["fde-ray/sweep"]
    assert names.label_value(odd) == odd


def test_kill_switch_follows_from_the_secret_and_does_not_show_it() -> None:
    def path(secret: str) -> str:
        agent = run_pod(session(secret=secret), PLAIN, Surroundings())["spec"]["containers"][1]
        assert agent["startupProbe"]["httpGet"] == agent["livenessProbe"]["httpGet"]
        return str(agent["livenessProbe"]["httpGet"]["path"])

    assert path("one") == path("one") != path("two")
    assert "one" not in path("one")


def test_deadline_holds_limit_pauses_collection_and_an_hour() -> None:
    assert (
        deadline_s(LIMITS.evolve(time_s=43_200.0, pause_cap_s=21_600.0)) == 43_200 + 21_600 + 7200
    )


@pytest.mark.parametrize(
    "plane", ["unix:/run/x.sock", "/run/x.sock", "http://gateway:80", "https://10.0.0.1:443"]
)
def test_plane_that_a_pod_cannot_reach_is_refused(plane: str) -> None:
    with pytest.raises(SandboxError, match=r"set planes\.run"):
        run_pod(session(plane_socket=plane), PLAIN, Surroundings())


@pytest.mark.parametrize(
    ("subject", "attempt"),
    [(f"{RUN}.1", "1"), (f"{RUN}.12", "12"), (f"{RUN}/{'cd' * 16}/0.1", f"{'cd' * 16}.0.1")],
)
def test_sessions_of_a_run_differ_by_name_and_attempt(subject: str, attempt: str) -> None:
    identity = names.pod_identity("solve", subject)
    assert (identity.run, identity.attempt) == (RUN, attempt)
    assert identity.shard == shard_of(RunId(RUN))
    assert identity.name != names.pod_identity("solve", f"{RUN}.2").name


@pytest.mark.parametrize("subject", ["x", "é.1", "a b/c", "x" * 300, "-.1", "RUN_" + "9" * 90])
def test_odd_subjects_have_names_and_labels_that_a_server_takes(subject: str) -> None:
    identity = names.pod_identity("extract", subject)
    assert len(identity.name) <= 63
    assert identity.name.isascii()
    for label in (identity.run, identity.attempt):
        assert names.label_value(label) == label
    assert 0 <= identity.shard < 256


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"image": "agent:1"}, "name the image by digest"),
        ({"image": "agent@sha256:12"}, "name the image by digest"),
        ({"image": "agent:1", "pull": "Always"}, "name the image by digest"),
        ({"image": DIGEST, "namespace": "Upper"}, "namespace"),
        ({"image": DIGEST, "forbidden": ["metadata:80"]}, "write ip:port"),
        ({"image": DIGEST, "forbidden": ["10.0.0.1:0"]}, "write ip:port"),
        ({"image": DIGEST, "shim_cpu": 0}, "shim_cpu"),
        ({"image": DIGEST, "scoring": "somewhere"}, "scoring"),
        ({}, "image"),
    ],
)
def test_profile_that_would_make_bad_pods_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        KubernetesProfile.model_validate(keys)


def test_pods_need_a_block_that_describes_them() -> None:
    with pytest.raises(ValidationError, match="needs a `kubernetes:` block"):
        SandboxProfile(runtime="kubernetes")
    assert SandboxProfile(runtime="kubernetes", kubernetes=PLAIN).kubernetes == PLAIN
