"""Case material is staged once, whoever else is at it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fde_ray.engine.material import Material
from fde_ray.grading.scoring import DATA, SEALED
from fde_ray.store.objects import FolderStore, layout
from tests.engine.drivers import CASE, two_points

DRIVERS = 16


async def test_drivers_that_stage_a_case_side_by_side_all_find_it_whole(tmp_path: Path) -> None:
    objects, scratch = FolderStore(tmp_path / "objects"), tmp_path / "scratch"
    drivers = [Material(two_points(), objects, "lab", scratch) for _ in range(DRIVERS)]
    staged = await asyncio.gather(*(driver.scoring(CASE) for driver in drivers))
    assert len(set(staged)) == 1
    assert len(list((scratch / "cases").iterdir())) == 2
    assert not list(scratch.rglob("*.draft"))


async def test_what_an_evaluator_sees_of_a_case_lies_in_the_store_for_boxes_elsewhere(
    tmp_path: Path,
) -> None:
    objects = FolderStore(tmp_path / "objects")
    material = Material(two_points(), objects, "lab", tmp_path / "scratch")
    case = await material.scoring(CASE)
    assert await objects.list("lab/") == [], "whoever only scores stores nothing"
    await material.keys(CASE)
    sealed, data = case.stored[SEALED], case.stored[DATA]
    assert sealed.key in await objects.list("lab/cases/sealed/")
    assert data.key in await objects.list("lab/cases/visible/")
    assert (sealed.below, data.below) == ("", "data")
    assert sealed.key == layout.case_key("lab", "sealed", case.sealed_dir.name)
    objects.close()
