"""The catalogue, its programs, and the pods that carry them fit together."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fde_ray.sandbox.kubernetes.fence.weaknesses import weaknesses
from fde_ray.sandbox.probes import bundle, programs
from fde_ray.sandbox.probes.building import Recipe, fenced_pod, free_pod, loose_pod
from fde_ray.sandbox.probes.catalogue import ATTEMPTS
from fde_ray.sandbox.probes.decoys import MACHINES
from fde_ray.sandbox.probes.fencing import LIFTED, fence, settings
from fde_ray.sandbox.probes.planning import errands
from fde_ray.sandbox.probes.records import Control, Group
from tests.sandbox.probes.builders import make_attempt, make_site

PROGRAMS = sorted(Path(programs.__file__).parent.glob("[a-z]*.py"))
TARGETS = {each.target: ("10.0.0.9", 80) for each in ATTEMPTS if each.target} | {
    "twin": ("10.0.0.8", 80),
    "twin_udp": ("10.0.0.8", 80),
}


def test_there_are_attempts_enough_of_every_group() -> None:
    assert len(ATTEMPTS) >= 60
    assert len({each.id for each in ATTEMPTS}) == len(ATTEMPTS)
    assert {each.group for each in ATTEMPTS} >= set(Group) - {Group.PLANE}


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda each: each.id)
def test_every_attempt_names_a_function_that_there_is(attempt: object) -> None:
    program, _, name = attempt.call.partition(".")  # type: ignore[attr-defined]
    module = importlib.import_module(f"{programs.__name__}.{program}")
    assert callable(getattr(module, name))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_programs_import_the_standard_library_and_each_other_alone(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert {name.name.partition(".")[0] for name in node.names} <= sys.stdlib_module_names
        if isinstance(node, ast.ImportFrom) and not node.level:
            allowed = sys.stdlib_module_names | {"fde_ray.shim.collecting"}
            assert node.module in allowed or str(node.module).partition(".")[0] in allowed


def test_every_attempt_with_a_target_is_tried_and_no_other() -> None:
    plan = errands(ATTEMPTS, TARGETS, make_site())
    tried = {attempt.id for errand in plan for attempt in errand.attempts}
    assert tried == {attempt.id for attempt in ATTEMPTS}
    assert len({errand.name for errand in plan}) == len(plan)
    without = errands(ATTEMPTS, {}, make_site())
    left = {attempt.id for errand in without for attempt in errand.attempts}
    assert left == {attempt.id for attempt in ATTEMPTS if not attempt.target}


def test_every_control_that_needs_a_pod_has_one() -> None:
    plan = errands(ATTEMPTS, TARGETS, make_site())
    controls = {
        Control.UNFENCED: {"free-network"},
        Control.TWIN: {"free-network"},
        Control.LOOSE: {"loose-host"},
    }
    for attempt in ATTEMPTS:
        where = {each.name for each in plan if attempt in each.attempts}
        wanted = controls.get(attempt.control, set())
        if attempt.control is Control.LARGER:
            wanted = {f"fenced-{attempt.id}-larger"}
        assert where >= wanted, attempt.id


def test_every_decoy_is_the_target_of_an_attempt() -> None:
    offered = {name for machine in MACHINES for name in machine.targets}
    assert offered <= {attempt.target for attempt in ATTEMPTS}


def test_a_fenced_pod_is_a_run_pod_but_for_its_programs() -> None:
    (errand,) = errands([make_attempt(control=Control.OWN)], {}, make_site())
    pod = fenced_pod(make_site(), errand.recipe)
    shim, agent = pod["spec"]["containers"]
    assert (shim["name"], agent["name"]) == ("shim", "agent")
    assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "env" not in agent
    for container in (shim, agent):
        assert all(len(word) < bundle.ARGUMENT_LIMIT for word in container["command"])
        assert make_site().secret not in json.dumps(container["command"])


def test_only_the_fenced_pod_has_a_gate_and_only_the_loose_one_is_root() -> None:
    recipe = Recipe("x", ())
    site = make_site()
    fenced, free, loose = (build(site, recipe) for build in (fenced_pod, free_pod, loose_pod))
    assert fenced["metadata"]["namespace"] == "runs"
    assert free["metadata"]["namespace"] == loose["metadata"]["namespace"] == "runs-free"

    def forbidden(pod: dict[str, object]) -> list[str]:
        config = json.loads(pod["spec"]["containers"][0]["env"][0]["value"])  # type: ignore[index]
        found: list[str] = config["pod"]["gate"]["forbidden"]
        return found

    assert "10.0.0.1:443" in forbidden(fenced)
    assert forbidden(free) == forbidden(loose) == []
    assert [pod["spec"]["securityContext"].get("runAsUser") for pod in (fenced, free, loose)] == [
        1000, 1000, None,
    ]  # fmt: skip
    assert not any("hostPath" in volume for volume in loose["spec"]["volumes"])


def test_the_fence_lifts_the_rule_of_programs_and_no_other() -> None:
    def rules(things: list[dict[str, object]]) -> set[str]:
        (policy,) = (t for t in things if t["kind"] == "ValidatingAdmissionPolicy")
        found: list[dict[str, str]] = policy["spec"]["validations"]  # type: ignore[index]
        return {each["expression"] for each in found}

    chosen = settings("runs", "runs-free", "gvisor", "10.0.0.2", 8000)
    every = {each.name: each.unless for each in weaknesses(chosen)}
    assert set(every.values()) - rules(fence(chosen)) == {every[name] for name in LIFTED}


def test_a_command_runs_its_programs_from_text_alone(tmp_path: Path) -> None:
    words = bundle.command(
        "harness.attempt_all", {"resources", "host"}, width=1,
        jobs=[
            {"id": "there", "call": "host.open_any", "limit_s": 5, "paths": ["/dev/null"]},
            {"id": "not", "call": "host.open_any", "limit_s": 5, "paths": ["/nowhere"]},
            {"id": "odd", "call": "host.open_any", "limit_s": 5},
            {"id": "slow", "call": "resources.output", "limit_s": 0.2, "amount": 0, "hold_s": 9},
        ],
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, *words[1:]], capture_output=True, text=True, timeout=30, check=True,
        cwd=tmp_path, env={},
    )  # fmt: skip
    lines = [json.loads(each) for each in done.stdout.splitlines()]
    assert [(each["id"], each["outcome"]) for each in lines] == [
        ("there", "done"), ("not", "refused"), ("odd", "broken"), ("slow", "broken"),
    ]  # fmt: skip
