"""A driver that is killed after any of its writes is followed by one that ends the run alike."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fde_ray.model.result import canonical
from fde_ray.protocol.packs import builtin_pack
from fde_ray.store.objects import layout
from tests.engine.drivers import make_spec, make_stage, marks, opened, result, submitted, worked
from tests.engine.killing import Killer
from tests.engine.stage import Agent, Script
from tests.engine.virtual import played

MARKER = builtin_pack().render("heading_marker").strip()
SPEC = make_spec(conditions=["interact_req"], limits={"time": "1h"})


async def asks_and_delivers(agent: Agent) -> None:
    await agent.start()
    await agent.chat("hello")
    await agent.say(f"{MARKER}\n- What is the maximum speed? And the unit?", delivered=False)
    await agent.say("Done, see answer.txt.")
    await agent.deliver({"answer.txt": b"0.5"})


async def loses_the_first(agent: Agent) -> None:
    if agent.number == 1:
        await agent.start()
        return
    await asks_and_delivers(agent)


class Ending(NamedTuple):
    """What must be the same, wherever a driver died."""

    result: dict[str, Any]
    losses: list[str | None]
    sessions: list[str]
    calls: set[str]
    open_sessions: int
    ended: list[bool]


async def run_to_end(home: Path, killer: Killer, solve: Script) -> Ending:
    """Work with a driver that `killer` kills, then with a second one; what came of it."""
    stage = make_stage(solve)
    async with opened(home, stage) as runtime:
        killer.watch(runtime)
        await killer.outlived(worked(runtime, [SPEC.name]))
    async with opened(home, stage) as runtime:
        (status,) = await worked(runtime, [SPEC.name])
        assert status.is_complete
        found = await result(runtime)
        (run,) = status.runs
        assert await marks(runtime) == {run.run_id: ("done", "scored")}
        calls = await runtime.store.calls_of(run.run_id)
        still_open = await runtime.store.open_sessions()
        ends = [
            await runtime.objects.exists(layout.end_key(runtime.tenant, subject))
            for subject in stage.started
        ]
        await stage.aclose()
        return Ending(
            result=canonical(found),
            losses=[None if note.kind is None else note.kind.value for note in found.attempts],
            sessions=stage.started,
            calls={call.call_id for call in calls},
            open_sessions=len(still_open),
            ended=ends,
        )


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the sweep submitted."""
    home = tmp_path_factory.mktemp("template") / "home"

    async def main() -> None:
        async with opened(home, make_stage()) as runtime:
            await submitted(runtime, SPEC)

    played(main)
    return home


@pytest.mark.parametrize(
    ("solve", "losses"),
    [(asks_and_delivers, [None]), (loses_the_first, ["shim_lost", None])],
    ids=["a_run", "a_run_with_a_loss"],
)
def test_a_driver_killed_after_any_write_leaves_a_run_that_ends_alike(
    template: Path, tmp_path: Path, solve: Script, losses: list[str | None]
) -> None:
    def one(after: int | None) -> tuple[Ending, int]:
        home, killer = tmp_path / "home", Killer(after)
        shutil.copytree(template, home)
        try:
            return played(lambda: run_to_end(home, killer, solve)), killer.writes
        finally:
            shutil.rmtree(home)

    expected, writes = one(None)
    assert (expected.result["score"], len(expected.result["rounds"])) == (0.5, 1)
    assert (expected.losses, expected.open_sessions) == (losses, 0)
    assert all(expected.ended)
    assert writes > 50
    # A loss comes early; what follows it is the other case.
    for after in range(writes if losses == [None] else 25):
        found, _ = one(after)
        assert found == expected, f"killed after write {after} of {writes}"
