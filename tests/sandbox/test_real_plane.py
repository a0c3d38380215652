"""A real shim and a real plane, for what a stand-in of either could be wrong about."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fde_ray.gateway.app import run_plane_app
from fde_ray.gateway.serve import served_on_socket
from fde_ray.model.chat import Bill, ChatReply, ChatRequest, Usage
from fde_ray.model.session import SessionLimits
from fde_ray.model.states import SolveEnd
from fde_ray.sandbox.local import LocalSandbox
from fde_ray.sandbox.records import SessionStart
from fde_ray.store.runs import RunStore
from tests.gateway.planes import SOLVE, Bench, make_bench
from tests.sandbox.fake_plane import LIMITS, MIB, says
from tests.store.builders import ManualClock, make_replied

pytestmark = pytest.mark.sandbox


def plays(*commands: str) -> Any:
    """Return a model that runs these commands, one a step, and says that it is done."""
    left = list(commands)

    async def complete(request: ChatRequest, bill: Bill) -> ChatReply:
        reply = says(None, ("run", {"command": left.pop(0)})) if left else says("done")
        return ChatReply(
            message=reply["choices"][0]["message"],
            usage=Usage(prompt_tokens=1, completion_tokens=1, source="offline"),
            model=request.model,
        )

    return complete


async def test_last_snapshot_is_graded_when_the_workspace_is_over_the_cap(
    sandbox: LocalSandbox, tmp_path: Path
) -> None:
    limits = SessionLimits(**LIMITS | {"archive_bytes": MIB})
    async for bench in benches(tmp_path, limits=limits, heartbeat_s=0.2, snapshot_s=0.3):
        bench.model.complete = plays(  # type: ignore[method-assign]
            "echo a > a; sleep 1.5; truncate -s 60000000 huge"
        )
        await play(bench, sandbox, tmp_path, limits)
        row = await bench.store.session(SOLVE)
        assert (row.state, row.solve_end) == ("committed", SolveEnd.SUBMITTED)
        assert row.exit is not None
        assert row.exit.kind == "agent_resource"
        assert row.commit is not None
        assert (row.commit.final, row.commit.files) == (True, 1)
        assert row.commit.snapshot != "final"


async def test_workspace_over_the_cap_without_a_snapshot_is_an_empty_tree(
    sandbox: LocalSandbox, tmp_path: Path
) -> None:
    # Noise that is a little larger as gzip: the plane says so after it has taken a first part.
    limits = SessionLimits(**LIMITS | {"archive_bytes": 10 * MIB})
    async for bench in benches(tmp_path, limits=limits, heartbeat_s=0.2):
        bench.model.complete = plays(  # type: ignore[method-assign]
            f"head -c {10 * MIB} /dev/urandom > noise"
        )
        await play(bench, sandbox, tmp_path, limits)
        row = await bench.store.session(SOLVE)
        assert row.state == "committed"
        assert row.commit is not None
        assert (row.commit.final, row.commit.files) == (True, 0)


async def benches(tmp_path: Path, **inputs: Any) -> AsyncIterator[Bench]:
    clock = ManualClock()
    async with RunStore(tmp_path / "runs.db", clock, busy_timeout_s=2) as store:
        bench = await make_bench(tmp_path, store, clock, **inputs)
        yield bench
        bench.objects.close()


async def play(bench: Bench, sandbox: LocalSandbox, folder: Path, limits: SessionLimits) -> None:
    """Run the session to its end; its first turn is its last."""
    socket = folder / "run.sock"
    async with served_on_socket(run_plane_app(bench.plane, bench.clock), socket):
        handle = await sandbox.start(
            SessionStart(
                subject=SOLVE,
                role="solve",
                plane_socket=str(socket),
                secret=bench.signer.bootstrap_secret(SOLVE),
                limits=limits,
            )
        )
        try:
            async with asyncio.timeout(30):
                while not await bench.store.dialogue(SOLVE):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                await bench.store.append_event(SOLVE, make_replied(2))
                while await sandbox.state(handle) == "running":  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        finally:
            await sandbox.stop(handle)
            await sandbox.remove(handle)
