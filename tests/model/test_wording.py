"""Figures in words."""

from __future__ import annotations

import pytest

from fde_ray.model.wording import counted


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs"), (-1, "-1 runs")]
)
def test_one_is_told_in_the_singular_and_all_else_in_the_plural(count: int, text: str) -> None:
    assert counted(count, "run") == text


def test_an_irregular_plural_is_given() -> None:
    assert [counted(n, "try", "tries") for n in (1, 2)] == ["1 try", "2 tries"]
