"""A stage whose programs run in boxes: sessions of the roles `score` and `exec`, played here."""

from __future__ import annotations

import io
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fde_ray.cases.records import Case
from fde_ray.engine.boxes import BoxScorer
from fde_ray.engine.runtime import Runtime
from fde_ray.gateway.messages import JobReply
from fde_ray.gateway.ports import EvaluateReply
from fde_ray.model.boxes import BOX_ROLES, BoxJob, BoxResult, BoxRole
from fde_ray.sandbox.records import Completed, Once, SessionStart
from fde_ray.shim.unpacking import unpack
from fde_ray.store.runs import SweepRun
from tests.engine.drivers import make_spec, opened, submitted, two_points, worked
from tests.engine.stage import Agent, Script, Stage, delivers, extracting, output, packed


def pods(**more: Any) -> dict[str, Any]:
    """Return a profile by which programs of grades run in pods."""
    block = {"image": "x:1", "pull": "Never"} | more
    return {"sandbox": {"runtime": "kubernetes", "kubernetes": block}}


class BoxAgent(Agent):
    """The shim of a box, and an extractor that may call the evaluator."""

    async def taken(self, wait_s: float = 20.0) -> JobReply:
        return await self._held(lambda plane, token: plane.boxes.next(token, wait_s))

    async def laid_out(self, reply: JobReply, folder: Path) -> dict[str, Path]:
        """Unpack the folders of a program; return inside path -> folder."""
        assert reply.job is not None
        assert reply.job_id is not None
        found = {}
        for number, one in enumerate(reply.job.folders):
            data = await self._folder(reply.job_id, number)
            found[one.at] = folder / str(number)
            found[one.at].mkdir()
            unpack(io.BytesIO(data).read, str(found[one.at]), cap_bytes=1 << 30, below=one.below)
        return found

    async def _folder(self, job_id: str, number: int) -> bytes:
        async def read(plane: Any, token: str) -> bytes:
            chunks = await plane.boxes.folder(token, job_id, number)
            return b"".join([chunk async for chunk in chunks])

        return await self._held(read)

    async def ended(self, reply: JobReply, result: BoxResult) -> None:
        job_id = reply.job_id or ""
        await self._held(lambda plane, token: plane.boxes.end(token, job_id, result))

    async def evaluated(self, score: float) -> EvaluateReply:
        data, _ = packed(output(score))
        return await self._held(lambda plane, token: plane.evaluate(token, data))


class BoxStage(Stage):
    """box: what boxes do; None = they run every program by the stage's own evaluator."""

    agent = BoxAgent

    def __init__(
        self,
        solve: Script = delivers,
        extract: Script | None = None,
        box: Callable[[BoxStage, BoxAgent], Awaitable[None]] | None = None,
        case: Case | None = None,
        **options: Any,
    ) -> None:
        case = case or two_points()["017"]
        super().__init__(case, solve, extract or extracting(0.5), **options)
        self.scorer: BoxScorer | None = None
        self.programs: list[tuple[str, BoxJob]] = []
        """(box, program) in the order of their taking."""
        self._box = box or serves

    def script_of(self, session: SessionStart) -> Script:
        if session.role not in BOX_ROLES:
            return super().script_of(session)

        async def play(agent: Agent) -> None:
            assert isinstance(agent, BoxAgent)
            await self._box(self, agent)

        return play

    async def run_once(self, once: Once) -> Completed:
        assert self.scorer is not None
        return await self.scorer.run_once(once)

    async def answered(self, agent: BoxAgent, reply: JobReply) -> None:
        """Run one program and tell how it ended."""
        assert reply.job is not None
        self.programs.append((agent.subject, reply.job))
        with tempfile.TemporaryDirectory() as scratch:
            folders = await agent.laid_out(reply, Path(scratch))
            mounts = [(str(host), at, True) for at, host in folders.items()]
            done = await super().run_once(Once(argv=reply.job.argv, mounts=mounts))
        result = BoxResult(
            reason=done.reason, exit_code=done.exit_code, stdout=done.stdout, stderr=done.stderr
        )
        await agent.ended(reply, result)

    def boxes(self, role: BoxRole = "score") -> list[str]:
        return self.started_of(role)


async def serves(stage: BoxStage, agent: BoxAgent) -> None:
    """Run programs until the plane has no more for this box."""
    await agent.start()
    while True:
        reply = await agent.taken()
        if reply.job is not None:
            await stage.answered(agent, reply)


@asynccontextmanager
async def boxed(
    home: Path, stage: BoxStage, cases: Mapping[str, Case] | None = None, **profile: Any
) -> AsyncIterator[Runtime]:
    """The runtime with a stage whose programs run in boxes."""
    async with opened(home, stage, cases=cases, **pods() | profile) as runtime:
        stage.scorer = BoxScorer(runtime.store, runtime.objects, runtime.tenant)
        try:
            yield runtime
        finally:
            await stage.scorer.aclose()


async def only_run(runtime: Runtime, **spec: Any) -> SweepRun:
    """Have one run graded to its end. spec: what its sweep has otherwise."""
    (status,) = await worked(runtime, await submitted(runtime, make_spec(**spec)))
    (run,) = status.runs
    return run


async def nothing_is_left(runtime: Runtime, stage: BoxStage) -> None:
    assert await runtime.store.open_sessions() == []
    assert await stage.sessions() == []
    assert await runtime.store.waiting_lines() == frozenset()
    assert not [key for key in await runtime.objects.list("") if "/boxes/" in key]
