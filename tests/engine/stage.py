"""A sandbox whose agents are coroutines of the test; they outlive the driver, as shims do.

An agent holds a call that the plane cannot serve and makes it again until a plane answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fde_ray.cases.records import Case
from fde_ray.gateway.bodies import parse_chat
from fde_ray.gateway.messages import Heartbeat, TokenRequest, TurnRequest
from fde_ray.gateway.plane import Plane
from fde_ray.model.base import sha256_hex
from fde_ray.model.boxes import BOX_ROLES
from fde_ray.model.chat import ChatReply
from fde_ray.model.errors import Refusal, StoreError
from fde_ray.model.failures import Fault
from fde_ray.model.session import SNAPSHOT_FINAL, AgentExit, Commit, Part
from fde_ray.model.states import Channel, Scope
from fde_ray.sandbox.records import (
    Completed,
    Handle,
    Once,
    Outcome,
    ProcessHandle,
    SandboxFacts,
    SessionStart,
    SessionState,
)
from fde_ray.shim.collecting import tree_hash

T = TypeVar("T")
RETRY_S = 0.25


class Agent:
    """What a script does in one session: the shim and the agent behind it."""

    def __init__(self, stage: Stage, session: SessionStart) -> None:
        self._stage, self.session = stage, session
        self.subject = session.subject
        self.turns = self.replies = 0
        self.is_leaving = False
        self._tokens: dict[str, str] = {}

    @property
    def number(self) -> int:
        return int(self.subject.rpartition(".")[2])

    @property
    def route(self) -> int:
        return route_of(self.subject)

    @property
    def scope(self) -> str:
        return self.session.role

    async def start(self) -> None:
        await self._held(lambda plane, token: plane.started(token))

    async def say(self, text: str, *, delivered: bool = True) -> str | None:
        """Post a turn; return the reply to it, None = finish."""
        self.turns += 1
        request = TurnRequest(
            turn_no=self.turns, channel=Channel.TEXT, text=text, has_deliverable=delivered
        )
        reply = await self._held(lambda plane, token: plane.post_turn(token, request))
        while reply.status == "pending":
            reply = await self._held(lambda plane, token: plane.turn_reply(token, request.turn_no))
        self.replies += 1
        return None if reply.action == "finish" else reply.message

    async def chat(self, text: str, call_id: str = "c1", **more: Any) -> ChatReply:
        inputs = await self._held(lambda plane, token: plane.inputs(token))
        body = {"model": inputs.model, "messages": [{"role": "user", "content": text}], **more}
        return await self._held(lambda plane, token: plane.chat(token, parse_chat(body), call_id))

    async def beat(self) -> None:
        await self._held(lambda plane, token: plane.heartbeat(token, Heartbeat(cpu_s=1.0)))

    async def exit(self, kind: str) -> None:
        notice = AgentExit.model_validate({"kind": kind, "detail": "as the test says"})
        await self._held(lambda plane, token: plane.exit(token, notice))

    async def deliver(self, files: Mapping[str, bytes]) -> None:
        """Collect `files` and commit."""
        self.is_leaving = True
        scope = "collect" if self.scope == "solve" else self.scope
        data, commit = packed(files)
        part = commit.parts[0]
        await self._held(
            lambda plane, token: plane.put_part(token, SNAPSHOT_FINAL, part.seq, part.sha256, data),
            scope,
        )
        await self._held(lambda plane, token: plane.commit(token, commit), scope)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _held(
        self, call: Callable[[Plane, str], Awaitable[T]], scope: str | None = None
    ) -> T:
        scope = scope or self.scope
        while True:
            plane = self._stage.planes.get(scope)
            try:
                if plane is not None:
                    return await call(plane, await self._token(plane, scope))
            except StoreError:
                pass
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise  # the session is stopped; else its plane went away during the call
            except Refusal as refusal:
                if refusal.fault is not Fault.OURS or refusal.code == "provider_rejected":
                    raise
            await asyncio.sleep(RETRY_S)

    async def _token(self, plane: Plane, scope: str) -> str:
        if scope not in self._tokens:
            request = TokenRequest(
                subject=self.subject, secret=self.session.secret, nonce=scope, scope=Scope(scope)
            )
            self._tokens[scope] = (await plane.issue_token(request)).token
        return self._tokens[scope]


Script = Callable[[Agent], Awaitable[None]]
Evaluator = Callable[[Path], Completed]


class Stage:
    """Plays `solve` in solving sessions and `extract` in extraction sessions.

    evaluate: answers the evaluator for one output folder; None = `scored_by_file`.
    """

    agent: type[Agent] = Agent

    def __init__(
        self, case: Case, solve: Script, extract: Script, evaluate: Evaluator | None = None
    ) -> None:
        self.case, self.solve, self.extract = case, solve, extract
        self.evaluate = evaluate or self.scored_by_file
        self.planes: dict[str, Plane] = {}
        self.facts = SandboxFacts(
            runtime="none", version="stage", limits="rlimit+watchdog", unsafe=True
        )
        self.started: list[str] = []
        self.refuse_start: list[Exception | None] = []
        """What the next starts raise; None = that one starts."""
        self.provenance = {"verdict": "clean", "findings": []}
        self.agents: dict[str, Agent] = {}
        self._sessions: dict[str, asyncio.Task[None]] = {}

    def connect(self, run_plane: Plane, grade_plane: Plane) -> None:
        self.planes = {"solve": run_plane, "collect": run_plane}
        self.planes |= dict.fromkeys(("extract", *BOX_ROLES), grade_plane)

    def disconnect(self) -> None:
        self.planes = {}

    async def aclose(self) -> None:
        for task in self._sessions.values():
            task.cancel()
        await asyncio.gather(*self._sessions.values(), return_exceptions=True)

    def started_of(self, role: str) -> list[str]:
        return [one for one in self.started if role_of(one) == role]

    async def probe(self) -> SandboxFacts:
        return self.facts

    async def start(self, session: SessionStart) -> Handle:
        if self.refuse_start and (error := self.refuse_start.pop(0)) is not None:
            raise error
        if session.subject not in self._sessions:
            self.started.append(session.subject)
            self.agents[session.subject] = agent = self.agent(self, session)
            script = self.script_of(session)
            self._sessions[session.subject] = asyncio.create_task(
                self._played(script, agent), name=f"stage {session.subject}"
            )
        return _handle(session.subject)

    def script_of(self, session: SessionStart) -> Script:
        return self.solve if session.role == "solve" else self.extract

    def handle_of(self, subject: str) -> Handle | None:
        return _handle(subject) if subject in self._sessions else None

    async def state(self, handle: Handle) -> SessionState:
        task = self._sessions.get(handle.subject)
        if task is None:
            return "lost"
        return "ended" if task.done() else "running"

    async def over(self, handles: Sequence[Handle]) -> frozenset[str]:
        return frozenset([h.subject for h in handles if await self.state(h) != "running"])

    async def sessions(self) -> list[Handle]:
        return [_handle(subject) for subject in self._sessions]

    async def turns(self, handle: Handle) -> int | None:
        agent = self.agents[handle.subject]
        return agent.turns if agent.turns == agent.replies and not agent.is_leaving else None

    async def outcome(self, handle: Handle) -> Outcome:
        return Outcome(phase="ended")

    async def stop(self, handle: Handle) -> None:
        task = self._sessions.get(handle.subject)
        if task is not None and not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def remove(self, handle: Handle) -> None:
        await self.stop(handle)
        self._sessions.pop(handle.subject, None)

    async def run_once(self, once: Once) -> Completed:
        if not any(argument.endswith("/evaluator.py") for argument in once.argv):
            return printed(self.provenance)
        folder = next(host for host, inside, _ in once.mounts if inside == "/grader/submission")
        return self.evaluate(Path(folder))

    def scored_by_file(self, folder: Path) -> Completed:
        """Give the score that the file `answer.txt` of the output says."""
        return self.scored(float((folder / "answer.txt").read_text()))

    def scored(self, score: float) -> Completed:
        return printed(
            {
                "valid": True,
                "stage": "quality",
                "raw": 1.0,
                "quality": score,
                "score": score,
                "components": {},
                "violations": [],
                "case": self.case.case_id,
                "version": self.case.meta.version,
                "scoring_hash": self.case.scoring_hash,
            }
        )

    async def _played(self, script: Script, agent: Agent) -> None:
        with contextlib.suppress(Refusal):  # the plane has ended the session; its shim leaves
            await script(agent)


def role_of(subject: str) -> str:
    if "/" not in subject:
        return "solve"
    return next((role for role in BOX_ROLES if f"/{role}." in subject), "extract")


def route_of(subject: str) -> int:
    return int(subject.rpartition("/")[2].partition(".")[0])


def printed(document: Any, exit_code: int = 0) -> Completed:
    return Completed(exit_code, json.dumps(document).encode() + b"\n", b"", "exit")


def packed(files: Mapping[str, bytes]) -> tuple[bytes, Commit]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            info = tarfile.TarInfo(name)
            info.size = len(files[name])
            archive.addfile(info, io.BytesIO(files[name]))
    data = gzip.compress(buffer.getvalue(), mtime=0)
    commit = Commit(
        snapshot=SNAPSHOT_FINAL,
        parts=(Part(seq=0, sha256=sha256_hex(data), size=len(data)),),
        tree_hash=tree_hash({k.encode(): hashlib.sha256(v).hexdigest() for k, v in files.items()}),
        files=len(files),
        size_bytes=sum(map(len, files.values())),
        final=True,
    )
    return data, commit


def _handle(subject: str) -> Handle:
    return ProcessHandle(subject=subject, pid=0, start_time=0, dir="")


async def delivers(agent: Agent) -> None:
    """Solve: say that it is done, and leave a file."""
    await agent.start()
    await agent.say("Done, see answer.txt.")
    await agent.deliver({"answer.txt": b"0.5"})


def extracting(score: float | Callable[[Agent], float]) -> Script:
    """Extract: copy an answer of this score."""

    async def extract(agent: Agent) -> None:
        value = score(agent) if callable(score) else score
        await agent.start()
        await agent.say("extracted")
        await agent.deliver(output(value))

    return extract


def output(score: float, status: str = "success") -> dict[str, bytes]:
    report = {
        "status": status,
        "notes": "",
        "files_found": ["answer.txt"],
        "files_normalized": ["answer.txt"],
    }
    return {"answer.txt": repr(score).encode(), "_result.json": json.dumps(report).encode()}
