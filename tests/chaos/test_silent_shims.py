"""A real shim that is stopped, and goes on long after another attempt took its place."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fde_ray.engine.inline import ALL_SHARDS, InlineEngine
from fde_ray.engine.planes import served_planes
from fde_ray.engine.runtime import Runtime, opened_runtime
from fde_ray.llm.offline import OfflineProvider
from fde_ray.model.chat import Bill, ChatReply, ChatRequest, Usage
from fde_ray.model.profile import Profile
from fde_ray.model.states import Phase, Role
from fde_ray.sandbox.local import LocalSandbox
from fde_ray.sandbox.records import Handle
from fde_ray.store.runs import AttemptRow
from tests.e2e.fake_models import in_turn, runs, says
from tests.engine.drivers import make_spec, submitted, two_points

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
]
BEAT_S = 0.1
"""Thirty-six of them are silence: 3.6 s."""
SYSTEM = {"name": "held", "scaffold": "minimal", "model": "offline/held"}
SPEC = make_spec("small", repeats=3, systems=[SYSTEM], limits={"time": "10m"})
WITHIN_S = 60.0


class HeldChat:
    """Answers agents only when it is allowed to."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self._script = in_turn(runs("echo 0.5 > answer.txt"), says("Done, see answer.txt."))
        self._offline = OfflineProvider(_no_probe)

    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply:
        if bill.role is not Role.AGENT:
            return await self._offline.complete(request, bill)
        await self.may_answer.wait()
        reply = self._script([dict(message) for message in request.messages])
        message = _message(reply.body(len(request.messages)))
        usage = Usage(prompt_tokens=1, completion_tokens=1, source="offline")
        return ChatReply(message=message, usage=usage, model=request.model)

    async def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]:
        raise AssertionError("the minimal scaffold does not stream")
        yield {}

    async def aclose(self) -> None:
        pass


class CutOffSandbox(LocalSandbox):
    """Cannot reach the host of one session any more, and is told that it is gone."""

    cut_off = ""

    async def stop(self, handle: Handle) -> None:
        if handle.subject != self.cut_off:
            await super().stop(handle)

    async def remove(self, handle: Handle) -> None:
        if handle.subject != self.cut_off:
            await super().remove(handle)


@asynccontextmanager
async def at_work(home: Path, chat: HeldChat) -> AsyncIterator[tuple[Runtime, CutOffSandbox]]:
    fields = {
        "home": str(home),
        "heartbeat_every": f"{BEAT_S}s",
        "sandbox": {"runtime": "bubblewrap"},
        "concurrency": {"runs": 4, "gradings": 2},
    }
    profile = Profile.model_validate(fields)
    sandbox = CutOffSandbox(home / "sandboxes", profile.sandbox)
    async with opened_runtime(
        profile, environ={}, sandbox=sandbox, cases=two_points(), chat=chat
    ) as runtime:
        await submitted(runtime, SPEC)
        lease = await runtime.store.take_lease(shards=ALL_SHARDS)
        tasks: list[asyncio.Task[None]] = []
        async with served_planes(runtime):
            tasks.append(asyncio.create_task(_breathe(runtime), name="breath"))
            engine = InlineEngine(runtime, lease)
            tasks.append(asyncio.create_task(engine.run(_never, [SPEC.name]), name="engine"))
            try:
                yield runtime, sandbox
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


async def _never() -> bool:
    return False


async def _breathe(runtime: Runtime) -> None:
    """Heartbeats are written with each breath, so that it must be quick as well."""
    while True:
        await runtime.run_plane.clocks.breathe("quick")
        await asyncio.sleep(BEAT_S)


async def attempts(runtime: Runtime) -> list[list[AttemptRow]]:
    found = await runtime.store.runs_of_sweep(SPEC.name, tenant=runtime.tenant)
    return [await runtime.store.attempts_of(run.run_id) for run in found]


async def all_heard(runtime: Runtime) -> list[AttemptRow]:
    """Wait until each run has an attempt that is heard; return those."""
    while True:
        last = [tries[-1] for tries in await attempts(runtime) if tries]
        if len(last) == SPEC.repeats and all(one.heartbeat_at and one.live for one in last):
            return last
        await asyncio.sleep(0.1)


async def lost(runtime: Runtime, subject: str) -> AttemptRow:
    while (row := await runtime.store.session(subject)).state != "closed":  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    return row


async def solved(runtime: Runtime) -> None:
    """Wait until every run has been collected."""
    unsolved = {Phase.QUEUED, Phase.PROVISIONING, Phase.SOLVING, Phase.COLLECTING}
    while True:
        found = await runtime.store.runs_of_sweep(SPEC.name, tenant=runtime.tenant)
        if not unsolved & {run.phase for run in found}:
            return
        await asyncio.sleep(0.1)


async def ended(pid: int) -> None:
    while not _is_over(pid):  # noqa: ASYNC110
        await asyncio.sleep(0.1)


def _is_over(pid: int) -> bool:
    try:
        return "Z (" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def apart_from_beats(row: AttemptRow) -> AttemptRow:
    """What a shim is heard to say is noted for people, also when its session is over."""
    return row._replace(heartbeat_at=None, cpu_s=None, rss_bytes=None, run_phase=Phase.SOLVING)


def _message(body: bytes) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(body)["choices"][0]["message"]
    return message


def _no_probe(case_id: str, name: str) -> Any:
    raise AssertionError(f"no probe {name} of {case_id}")


async def test_a_stopped_shim_that_goes_on_after_it_was_replaced_changes_nothing(
    tmp_path: Path,
) -> None:
    chat = HeldChat()
    async with asyncio.timeout(WITHIN_S), at_work(tmp_path, chat) as (runtime, sandbox):
        stopped, *others = await all_heard(runtime)
        pid = stopped.handle["pid"]
        sandbox.cut_off = stopped.subject
        os.kill(pid, signal.SIGSTOP)
        try:
            row = await lost(runtime, stopped.subject)
            assert (row.failure, row.solve_end) == ("shim_lost", "infra_lost")
            replaced, *same = await all_heard(runtime)
            assert replaced.subject == f"{stopped.run_id}.2"
            assert [one.subject for one in same] == [one.subject for one in others]
            before = await runtime.store.session(stopped.subject)
            said = await runtime.store.watched(stopped.subject)
        finally:
            os.kill(pid, signal.SIGCONT)
        chat.may_answer.set()
        await solved(runtime)
        await ended(pid)
        after = await runtime.store.session(stopped.subject)
        assert apart_from_beats(after) == apart_from_beats(before)
        assert (await runtime.store.watched(stopped.subject))[1] == said[1]
        tries = {one.subject: one.failure for found in await attempts(runtime) for one in found}
        kept = dict.fromkeys([replaced.subject, *(one.subject for one in others)])
        assert tries == {stopped.subject: "shim_lost", **kept}
