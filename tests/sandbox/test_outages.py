"""The plane goes away, a provider is down, the driver dies: the session waits and goes on."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fde_ray.model.failures import FailureKind
from fde_ray.sandbox.cgroups import find_cgroups
from fde_ray.sandbox.local import LocalSandbox
from fde_ray.sandbox.records import Handle, ProcessHandle
from tests.sandbox.conftest import Play
from tests.sandbox.fake_plane import LIMITS, SECRET, FakePlane, Reply, refusal, says

pytestmark = pytest.mark.sandbox
Answer = tuple[int, Reply] | None


def first_times(count: int, path: str, answer: tuple[int, Reply]) -> Callable[..., Answer]:
    """Answer the first `count` requests of a path in another way."""
    left = [count]

    def before(_method: str, route: str, _scope: str) -> Answer:
        if route.startswith(path) and left[0] > 0:
            left[0] -= 1
            return answer
        return None

    return before


async def ended(sandbox: LocalSandbox, handle: Handle) -> None:
    async with asyncio.timeout(30):
        while await sandbox.state(handle) == "running":  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("fault", ["ours", "provider"])
async def test_model_call_is_held_through_faults_with_one_call_id(
    plane: FakePlane, play: Play, fault: str
) -> None:
    ids = []

    def before(_method: str, route: str, _scope: str) -> Answer:
        if route != "/v1/chat/completions":
            return None
        ids.append(route)
        return refusal(503, fault) if len(ids) <= 3 else None

    plane.before = before
    plane.model = [says(None, ("run", {"command": "sleep 0.6"})), says("done")]
    await play(plane)
    assert len(ids) == 5
    assert len(plane.call_ids) == 2
    assert any(beat["held"] == plane.call_ids[:1] for beat in plane.beats)
    assert plane.beats[-1]["held"] == []
    assert plane.turn_bodies[0]["text"] == "done"


@pytest.mark.parametrize("fault", ["agent", "budget"])
async def test_final_refusal_goes_to_the_agent(plane: FakePlane, play: Play, fault: str) -> None:
    plane.before = first_times(1, "/v1/chat/completions", refusal(403, fault, "no_more"))
    await play(plane)
    assert [e["kind"] for e in plane.exits] == ["agent_error"]
    assert "no_more" in plane.exits[0]["detail"]


async def test_plane_that_goes_away_in_a_call_is_waited_for(
    plane: FakePlane, start: Play, sandbox: LocalSandbox
) -> None:
    plane.inputs["limits"] = LIMITS | {"time_s": 2.0}
    plane.beat["remaining_s"] = 2.0
    plane.model = [says(None, ("run", {"command": "echo x > x; sleep 0.5"})), says("done")]
    handle = await start(plane)
    plane.wait_for(lambda: len(plane.chats) == 1)
    plane.close()
    await asyncio.sleep(2.5)  # longer than the time limit: an outage is a pause
    assert await sandbox.state(handle) == "running"
    plane.open()
    await ended(sandbox, handle)
    assert plane.turn_bodies[0]["text"] == "done"
    assert plane.exits == []


async def test_plane_that_goes_away_in_the_collection_gets_it_later(
    plane: FakePlane, start: Play, sandbox: LocalSandbox
) -> None:
    plane.model = [says(None, ("write", {"path": "a", "text": "b"})), says("done")]
    tries: list[str] = []

    def before(_method: str, route: str, scope: str) -> Answer:
        if route.startswith("/v1/parts"):
            tries.append(scope)
            return refusal(503, "ours") if len(tries) < 3 else None
        return None

    plane.before = before
    handle = await start(plane)
    plane.wait_for(lambda: bool(tries))
    plane.close()
    await asyncio.sleep(0.5)
    plane.open()
    await ended(sandbox, handle)
    assert plane.files(plane.final()) == {b"a": b"b"}
    assert set(tries) == {"collect"}


async def test_outage_beyond_the_pause_cap_ends_the_sandbox(
    plane: FakePlane, start: Play, sandbox: LocalSandbox
) -> None:
    plane.inputs["limits"] = LIMITS | {"pause_cap_s": 1.0}
    plane.model = [says(None, ("run", {"command": "echo x > x; sleep 100"}))]
    handle = await start(plane)
    plane.wait_for(lambda: len(plane.chats) == 1)
    state = json.loads(Path(handle.dir, "state.json").read_text())  # noqa: ASYNC240
    plane.close()
    async with asyncio.timeout(10):
        while os.path.exists(f"/proc/{state['runner_pid']}"):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.05)
    plane.open()
    await ended(sandbox, handle)
    assert plane.files(plane.final()) == {b"x": b"x\n"}


async def test_plane_that_stays_away_ends_the_shim_at_the_pause_cap(
    plane: FakePlane, start: Play, sandbox: LocalSandbox
) -> None:
    plane.inputs["limits"] = LIMITS | {"pause_cap_s": 1.0}
    plane.model = [says(None, ("run", {"command": "sleep 100"}))]
    handle = await start(plane)
    plane.wait_for(lambda: len(plane.chats) == 1)
    plane.close()
    await ended(sandbox, handle)
    outcome = await sandbox.outcome(handle)
    assert outcome.failure is FailureKind.COLLECTION_FAILED
    assert plane.commits == []


async def test_plane_that_stays_away_in_the_collection_ends_the_shim_at_the_pause_cap(
    plane: FakePlane, start: Play, sandbox: LocalSandbox
) -> None:
    plane.inputs["limits"] = LIMITS | {"pause_cap_s": 1.0}
    plane.before = lambda _method, route, _scope: (
        refusal(503, "ours") if route.startswith("/v1/parts") else None
    )
    handle = await start(plane)
    plane.wait_for(lambda: any(path.startswith("/v1/parts") for _, path, _ in plane.seen))
    plane.close()
    await ended(sandbox, handle)
    assert (await sandbox.outcome(handle)).failure is FailureKind.COLLECTION_FAILED


@pytest.mark.parametrize("renewed", [False, True], ids=["deleted", "made anew"])
async def test_shim_ends_soon_after_its_folder_was_deleted(
    plane: FakePlane, start: Play, sandbox: LocalSandbox, renewed: bool
) -> None:
    plane.model = [says(None, ("run", {"command": "sleep 100"}))]
    handle = await start(plane)
    plane.wait_for(lambda: len(plane.chats) == 1)
    state = json.loads(Path(handle.dir, "state.json").read_text())  # noqa: ASYNC240
    shutil.rmtree(handle.dir)
    if renewed:
        os.mkdir(handle.dir)
    async with asyncio.timeout(10):
        await ended(sandbox, handle)
    assert not os.path.exists(f"/proc/{state['runner_pid']}")  # noqa: ASYNC240
    assert await sandbox.state(handle) == "lost"
    assert plane.commits == []


async def test_shim_in_an_outage_ends_soon_after_its_folder_was_deleted(
    plane: FakePlane, start: Play, sandbox: LocalSandbox
) -> None:
    plane.close()
    handle = await start(plane)
    shutil.rmtree(handle.dir)
    async with asyncio.timeout(10):
        await ended(sandbox, handle)


@pytest.mark.parametrize("answer", [(401, "bad_secret"), (403, "not_live")])
async def test_shim_whose_secret_is_refused_ends_soon(
    plane: FakePlane, start: Play, sandbox: LocalSandbox, answer: tuple[int, str]
) -> None:
    plane.model = [says(None, ("run", {"command": "sleep 100"}))]
    handle = await start(plane)
    plane.wait_for(lambda: len(plane.chats) == 1)
    plane.tokens.clear()
    plane._token = lambda _scope: refusal(answer[0], "agent", answer[1])  # type: ignore
    async with asyncio.timeout(10):
        await ended(sandbox, handle)
    assert plane.commits == []


async def test_token_that_is_not_taken_any_more_is_replaced(plane: FakePlane, play: Play) -> None:
    plane.before = first_times(1, "/v1/turns", refusal(401, "agent", "expired"))
    await play(plane)
    assert plane.turn_bodies[0]["text"] == "done"


async def test_token_is_renewed_before_it_expires(plane: FakePlane, play: Play) -> None:
    plane.token_lifetime_s = 0.4
    plane.model = [says(None, ("run", {"command": "sleep 0.8"})), says("done")]
    await play(plane)
    assert sum(path == "/v1/token/renew" for _, path, _ in plane.seen) >= 2
    assert [path for _, path, _ in plane.seen].count("/v1/token") == 2  # solve, then collect


async def test_driver_death_does_not_end_a_session(
    plane: FakePlane, sandbox: LocalSandbox, shared_home: Path
) -> None:
    plane.model = [says(None, ("run", {"command": "echo x > x; sleep 1"})), says("done")]
    driver = f"""
import asyncio, sys, time
from pathlib import Path
from fde_ray.model.profile import SandboxProfile
from fde_ray.model.session import SessionLimits
from fde_ray.model.failures import FailureKind
from fde_ray.sandbox.cgroups import find_cgroups
from fde_ray.sandbox.local import LocalSandbox
from fde_ray.sandbox.records import SessionStart
box = LocalSandbox(Path({str(shared_home)!r}), SandboxProfile(runtime="bubblewrap"))
session = SessionStart(subject={plane.inputs["subject"]!r}, role="solve", secret={SECRET!r},
    plane_socket={str(plane.socket)!r}, limits=SessionLimits(**{LIMITS!r}))
print(asyncio.run(box.start(session)).model_dump_json(), flush=True)
time.sleep(100)
"""
    with subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", driver],
        stdout=subprocess.PIPE,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        handle = ProcessHandle.model_validate_json(line)
        plane.wait_for(lambda: len(plane.chats) == 1)
        os.killpg(process.pid, signal.SIGKILL)
    assert await sandbox.state(handle) == "running"
    assert sandbox.handle_of(handle.subject) == handle
    await ended(sandbox, handle)
    assert await sandbox.state(handle) == "ended"
    assert plane.files(plane.final()) == {b"x": b"x\n"}
    await sandbox.remove(handle)


async def test_killed_shim_takes_its_sandbox_along_and_counts_as_lost(
    plane: FakePlane, start: Play, sandbox: LocalSandbox
) -> None:
    plane.model = [says(None, ("run", {"command": "sleep 100"}))]
    handle = await start(plane)
    plane.wait_for(lambda: len(plane.chats) == 1)
    state = json.loads(Path(handle.dir, "state.json").read_text())  # noqa: ASYNC240
    os.kill(handle.pid, signal.SIGKILL)
    end = time.monotonic() + 10
    while os.path.exists(f"/proc/{state['runner_pid']}"):  # noqa: ASYNC240
        assert time.monotonic() < end
        await asyncio.sleep(0.02)
    assert await sandbox.state(handle) == "lost"
    await sandbox.remove(handle)
    assert not os.path.exists(handle.dir)  # noqa: ASYNC240
    site = find_cgroups()
    groups = [group for parent in site.parents.values() for group in os.listdir(parent)]
    assert f"fde-{handle.pid}" not in groups
