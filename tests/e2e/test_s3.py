"""A sweep on S3 finds what it finds on a folder, and its results come back from the bucket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fde_ray.engine.campaign import carried_out
from fde_ray.engine.controller import Controller
from fde_ray.engine.runtime import opened_runtime
from fde_ray.gateway.direct import DirectGateway
from fde_ray.model.documents import parse_document
from fde_ray.model.objects import S3Settings
from fde_ray.model.profile import Profile
from fde_ray.model.result import canonical
from fde_ray.model.specs import SweepSpec
from fde_ray.presets import preset_text
from fde_ray.sandbox.null import NullSandbox
from fde_ray.store.objects import layout
from fde_ray.store.objects.opening import opened_objects
from fde_ray.store.pulls import Puller, Where, kinds_of
from fde_ray.store.pulls.checking import check_parts
from fde_ray.store.pulls.keeping import Keeper
from fde_ray.store.results import results_of
from tests.store.objects.fake_s3 import Fault, fake_s3
from tests.store.objects.s3_servers import ENVIRON, REAL, Servers, make_settings

CASES, REPEATS = ("017", "036"), 2
SWEEP = "demo"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    made = Servers(tmp_path_factory.mktemp("servers"))
    yield made
    made.close()


def spec() -> SweepSpec:
    demo = parse_document(preset_text("demo"), SweepSpec)
    return demo.evolve(
        name=SWEEP,
        cases=CASES,
        systems=[s.jsonable() for s in demo.systems if s.name == "do_nothing"],
        conditions=("hidden", "interact_req"),
        repeats=REPEATS,
        limits={**demo.limits.jsonable(), "pushes": 1},
    )


async def swept(home: Path, objects: S3Settings | None, **changes: Any) -> dict[str, Any]:
    """Run the sweep without processes; return its canonical results, read from the bucket."""
    gateway = DirectGateway()
    chosen = {"home": str(home), "objects": objects and objects.jsonable()}
    profile = Profile.model_validate(chosen)
    async with opened_runtime(profile, environ=ENVIRON, sandbox=NullSandbox(gateway)) as runtime:
        gateway.connect(runtime.run_plane, runtime.grade_plane)
        await Controller(runtime).submit(spec().evolve(**changes))
        (status,) = await carried_out(runtime, [SWEEP])
        assert status.is_complete
        found = results_of(runtime.objects, runtime.tenant, SWEEP)
        return {result.run_id: canonical(result) async for result in found}


@pytest.mark.parametrize(
    "name", ["moto", *(pytest.param(name, marks=pytest.mark.slow) for name in REAL)]
)
async def test_sweep_on_s3_equals_that_on_a_folder(
    name: str, servers: Servers, tmp_path: Path
) -> None:
    settings = make_settings(servers.endpoint(name), prefix="lab/e2e")
    on_folder = await swept(tmp_path / "one", None)
    on_s3 = await swept(tmp_path / "two", settings)
    assert len(on_s3) == len(CASES) * REPEATS * 2
    assert on_s3 == on_folder
    assert not [p for p in (tmp_path / "two" / "objects").rglob("*") if p.is_file()]
    await _comes_back(settings, tmp_path / "out", set(on_s3))


FAULTS: tuple[dict[str, Any], ...] = (
    {"status": 503, "code": "SlowDown"},
    {"status": 503, "code": "SlowDown", "after": True},
    {"status": 429, "code": ""},
    {"status": 500, "code": "InternalError", "after": True},
    {"cut": True},
    {"cut": True, "after": True},
    {"cut": True, "after": True, "delay_s": 1.5},
)
OBJECTS = (
    "/specs/",
    "/start.json",
    "/parts/",
    "/manifest.json",
    "/dialogue.jsonl",
    "/end.json",
    "/result.json",
    "/marks/",
)


async def test_sweep_on_s3_in_a_storm_equals_that_on_a_folder(tmp_path: Path) -> None:
    few: dict[str, Any] = {"cases": ("017",), "repeats": 1}
    on_folder = await swept(tmp_path / "one", None, **few)
    with fake_s3() as s3:
        # Two kinds for every family of objects: one alone would wait longer and longer.
        storm = [
            Fault("PUT", part, **FAULTS[(place + shift) % len(FAULTS)])
            for place, part in enumerate(OBJECTS)
            for shift in (0, 3)
        ]
        s3.faults = [
            *storm,
            Fault("GET", "/local/", cut=True),
            Fault("HEAD", "/local/", status=500),
        ]
        on_s3 = await swept(tmp_path / "two", make_settings(s3.endpoint, read_timeout="1s"), **few)
    assert on_s3 == on_folder
    assert [fault.part for fault in storm if fault.times > 0] == []


async def test_manifest_is_there_though_the_plane_never_came_to_write_it(tmp_path: Path) -> None:
    gateway, held = DirectGateway(), set[str]()
    profile = Profile(home=str(tmp_path))
    async with opened_runtime(profile, environ={}, sandbox=NullSandbox(gateway)) as runtime:
        create = runtime.objects.create

        async def never_at_first(key: str, data: bytes) -> bool:
            if key.endswith(layout.MANIFEST) and key not in held:
                held.add(key)
                await asyncio.Event().wait()
            return await create(key, data)

        runtime.objects.create = never_at_first  # type: ignore[method-assign]
        gateway.connect(runtime.run_plane, runtime.grade_plane)
        await Controller(runtime).submit(spec().evolve(cases=("017",), repeats=1))
        (status,) = await carried_out(runtime, [SWEEP])
        assert status.is_complete
        assert len(held) == 2
        assert all([await runtime.objects.exists(key) for key in held])


async def _comes_back(settings: S3Settings, folder: Path, runs: set[str]) -> None:
    async with opened_objects(settings, folder, ENVIRON, probed=False) as objects:
        with Keeper(folder) as keeper:
            puller = Puller(objects, "local", SWEEP, keeper, kinds=kinds_of("all"), where=Where())
            await puller.summaries()
            pull = await puller.rest()
        assert (pull.written, pull.findings) == (len(runs), ())
        assert [await check_parts(objects, "local", run) for run in runs] == [[]] * len(runs)
    assert {path.name.split(".")[0] for path in (folder / "workspaces").iterdir()} == runs
