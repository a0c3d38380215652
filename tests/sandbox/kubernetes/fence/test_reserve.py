"""The reserve holds the pods of all grades that are in work at once, or says what to set."""

from __future__ import annotations

from typing import Any

import pytest

from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.sandbox.kubernetes.fence import FenceSettings, grading_of, parsed_peer
from fde_ray.sandbox.kubernetes.fence.reserve import Reserve, grades_held, reserve_of, shortage

PLANE = (parsed_peer("10.0.0.7:8080"),)
MANY = 10**6
GIB = 1 << 30
SEVEN_PODS = (
    "4 grades at once take 8 pods (extract, score), and 7 are kept for grading; "
    "give `cluster render` --grading-pods 8, or set concurrency.gradings to 3"
)


def profile(**more: Any) -> KubernetesProfile:
    sizes = {"scoring_cpu": 1.0, "shim_cpu": 0.25, "shim_memory": "256MiB"}
    return KubernetesProfile.model_validate({"image": "run", "pull": "Never"} | sizes | more)


@pytest.mark.parametrize(
    ("scoring", "has_programs", "roles"),
    [
        ("pods", False, ("extract", "score")),
        ("pods", True, ("extract", "score", "exec")),
        ("local", False, ("extract",)),
        ("local", True, ("extract", "exec")),
        ("refuse", True, ("extract",)),
    ],
)
def test_a_grade_has_a_pod_for_each_program_that_runs_in_one(
    scoring: str, has_programs: bool, roles: tuple[str, ...]
) -> None:
    found = grading_of(profile(scoring=scoring), 3, has_programs=has_programs)
    assert found.roles == roles
    assert found.pods == 3 * len(roles)


@pytest.mark.parametrize(
    ("reserve", "held", "told"),
    [
        (Reserve(8), 4, None),
        (Reserve(7), 3, SEVEN_PODS),
        (Reserve(1), 0, "and 1 is kept for grading; give `cluster render` --grading-pods 8"),
        (Reserve(0), 0, "and 0 are kept for grading; give `cluster render` --grading-pods 8"),
        (Reserve(MANY, 6.5), 4, None),
        (Reserve(MANY, 6.0), 3, "4 grades at once take 6 cores without their extractors, and 6 "),
        (Reserve(MANY, None, 2 * GIB + 1), 4, None),
        (Reserve(MANY, None, 2 * GIB), 3, "give `cluster render` more --memory or --grading-pods"),
        (Reserve(MANY, 0.0, 0), 0, "and 0 are kept for grading; give `cluster render` more --cpu"),
    ],
)
def test_what_is_short_is_told_with_what_to_set(
    reserve: Reserve, held: int, told: str | None
) -> None:
    grading = grading_of(profile(), 4, has_programs=False)
    assert grades_held(reserve, grading) == held
    found = shortage(reserve, grading)
    if told is None:
        assert found is None
    else:
        assert found is not None
        assert told in f"{found.detail}; {found.remedy}"


@pytest.mark.parametrize(
    ("reserve", "sizes", "told"),
    [
        (Reserve(0), {"scoring": "refuse"}, "a grade takes 1 pod (extract), and 0 are kept"),
        (
            Reserve(MANY, 1.0),
            {"shim_cpu": 0.25, "scoring_cpu": 0.5},
            "a grade takes 1 core without its extractor, and 1 is kept for grading",
        ),
        (
            Reserve(MANY, None, GIB),
            {"shim_memory": "1GiB"},
            "a grade takes 2 GiB without its programs, and 1 is kept for grading",
        ),
    ],
)
def test_one_of_a_thing_is_told_as_one(reserve: Reserve, sizes: dict[str, Any], told: str) -> None:
    found = shortage(reserve, grading_of(profile(**sizes), 1, has_programs=False))
    assert found is not None
    assert found.detail.startswith(told)


def test_one_grade_that_has_no_place_can_only_be_given_one() -> None:
    found = shortage(Reserve(2), grading_of(profile(), 1, has_programs=True))
    assert found is not None
    assert found.detail.startswith("a grade takes 3 pods (extract, score, exec)")
    assert found.remedy == "give `cluster render` --grading-pods 3"


@pytest.mark.parametrize(
    ("settings", "reserve"),
    [
        ({"pods": 10}, Reserve(3)),
        ({"pods": 10, "grading_pods": 5, "cpu": 11}, Reserve(5, 6)),
        ({"pods": 10, "grading_pods": 5, "memory_gib": 9}, Reserve(5, None, 5 * GIB)),
    ],
)
def test_reserve_is_what_the_fence_renders(settings: dict[str, int], reserve: Reserve) -> None:
    planes = {"run_plane": PLANE, "grade_plane": PLANE}
    assert reserve_of(FenceSettings.model_validate(planes | settings)) == reserve
