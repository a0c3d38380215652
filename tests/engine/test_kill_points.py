"""A driver that is killed after any of its writes is followed by one that ends the run alike."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fde_ray.model.errors import StoreError
from fde_ray.model.result import canonical
from fde_ray.protocol.packs import builtin_pack
from tests.engine.drivers import make_spec, make_stage, marks, opened, result, submitted, worked
from tests.engine.killing import Killer
from tests.engine.stage import Agent
from tests.engine.virtual import played

MARKER = builtin_pack().render("heading_marker").strip()
SPEC = make_spec(conditions=["interact_req"], limits={"time": "1h"})


async def asks_and_delivers(agent: Agent) -> None:
    await agent.start()
    await agent.chat("hello")
    await agent.say(f"{MARKER}\n- What is the maximum speed? And the unit?", delivered=False)
    await agent.say("Done, see answer.txt.")
    await agent.deliver({"answer.txt": b"0.5"})


async def run_to_end(home: Path, killer: Killer) -> tuple[dict[str, Any], Counter[str]]:
    """Work with a driver that `killer` kills, then with a second one; what came of it."""
    stage = make_stage(asks_and_delivers)
    async with opened(home, stage) as runtime:
        killer.watch(runtime)
        try:
            await worked(runtime, [SPEC.name])
        except StoreError:
            assert killer.has_struck
    async with opened(home, stage) as runtime:
        (status,) = await worked(runtime, [SPEC.name])
        assert status.is_complete
        found = await result(runtime)
        assert [note.kind for note in found.attempts] == [None], "the shim lived on"
        (run,) = status.runs
        assert await marks(runtime) == {run.run_id: ("done", "scored")}
        calls = await runtime.store.calls_of(run.run_id)
        await stage.aclose()
        return canonical(found), Counter(call.call_id for call in calls)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the sweep submitted."""
    home = tmp_path_factory.mktemp("template") / "home"

    async def main() -> None:
        async with opened(home, make_stage()) as runtime:
            await submitted(runtime, SPEC)

    played(main)
    return home


def test_a_driver_killed_after_any_write_leaves_a_run_that_ends_alike(
    template: Path, tmp_path: Path
) -> None:
    def one(after: int | None) -> tuple[dict[str, Any], Counter[str], int]:
        home, killer = tmp_path / "home", Killer(after)
        shutil.copytree(template, home)
        try:
            return *played(lambda: run_to_end(home, killer)), killer.writes
        finally:
            shutil.rmtree(home)

    expected, calls, writes = one(None)
    assert expected["score"] == 0.5
    assert len(expected["rounds"]) == 1
    assert writes > 50
    for after in range(writes):
        found, made, _ = one(after)
        assert found == expected, f"killed after write {after} of {writes}"
        assert set(made) == set(calls), f"killed after write {after} of {writes}"
