"""A sweep of two cases in pods ends as `fde-ray demo` does on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cluster.lab.layout import Layout
from tests.e2e.driving import results, said, started
from tests.kube.kubectl import Kubectl, phase, until
from tests.kube.pods import RUNTIMES
from tests.kube.sweeps import CELLS, ENDS_WITHIN_S, boxes_of, by_cell, demo_results, pods_of, site

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("sweeps")]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found = demo_results(tmp_path_factory.mktemp("demo"))
    assert tuple(sorted(found)) == CELLS, "the demo runs each cell that goes into pods"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_sweep_in_pods_ends_with_the_same_canonical_results_as_the_demo(
    kubectl: Kubectl, layout: Layout, tmp_path: Path, demo: dict[str, Any], runtime: str
) -> None:
    name = f"sweep-{runtime}-{os.getpid()}"
    with site(kubectl, layout, tmp_path, name, runtime) as here:
        said(tmp_path, *here.sweep("submit", str(here.spec), "--json"))
        assert by_cell(tmp_path, "pods") == demo
        assert not pods_of(kubectl, name), "nothing is left of sessions that have ended"
        boxes = boxes_of(tmp_path)
        assert len(boxes) == len(demo), "a scoring pod for each grade"
        assert all(box.endswith("/score.1") for box in boxes)


@pytest.mark.slow
def test_a_scoring_pod_that_is_deleted_costs_no_route_and_no_attempt(
    kubectl: Kubectl, layout: Layout, tmp_path: Path, demo: dict[str, Any]
) -> None:
    name = f"sweep-lost-{os.getpid()}"
    with site(kubectl, layout, tmp_path, name, "gvisor") as here:

        def scoring() -> list[str]:
            pods = [pod for pod in pods_of(kubectl, name) if phase(pod) == "Running"]
            names = [pod["metadata"]["name"] for pod in pods]
            return [one for one in names if one.startswith("fde-score-")]  # a canary is none

        with started(tmp_path, *here.sweep("submit", str(here.spec), "--json")) as driver:
            until(lambda: bool(scoring()) or driver.poll() is not None, 240, "a scoring pod")
            assert driver.poll() is None, driver.communicate()[1].decode()[-2000:]
            lost = scoring()[0]
            kubectl.run("delete", "pod", lost, "-n", name, "--grace-period=0", "--force")
            _, err = driver.communicate(timeout=ENDS_WITHIN_S)
        assert driver.returncode == 0, err.decode()[-2000:]
        assert by_cell(tmp_path, "pods") == demo
        attempts = [len(result.attempts) for result in results(tmp_path, "pods").values()]
        assert attempts == [1] * len(demo), "no run began anew"
        assert not pods_of(kubectl, name)


def test_a_driver_that_is_killed_leaves_its_pods_and_the_next_one_goes_on_with_them(
    kubectl: Kubectl, layout: Layout, tmp_path: Path, demo: dict[str, Any]
) -> None:
    name = f"sweep-killed-{os.getpid()}"
    with site(kubectl, layout, tmp_path, name, "gvisor") as here:
        submit = here.sweep("submit", str(here.spec), "--json")

        def running() -> list[str]:
            pods = [pod for pod in pods_of(kubectl, name) if phase(pod) == "Running"]
            names = [pod["metadata"]["name"] for pod in pods]
            return [one for one in names if one.startswith("fde-solve-")]  # a canary is none

        with started(tmp_path, *submit) as driver:
            until(lambda: bool(running()) or driver.poll() is not None, 120, "a solving pod")
            assert driver.poll() is None, driver.communicate()[1].decode()[-2000:]
            driver.kill()
            driver.communicate()
        left = running()
        assert left, "pods outlive their driver"
        with started(tmp_path, *submit) as again:
            _, err = again.communicate(timeout=ENDS_WITHIN_S)
        assert again.returncode == 0, err.decode()[-2000:]
        assert by_cell(tmp_path, "pods") == demo
        attempts = [len(result.attempts) for result in results(tmp_path, "pods").values()]
        assert attempts == [1] * len(demo), "no run began anew"
        assert not pods_of(kubectl, name), "nothing is left of sessions that have ended"
