"""A real run-plane with made-up runs, for proofs of isolation: `python -m fde_ray.gateway.proving`.

It listens on `--listen ADDRESS`, prints one line that says where and gives away what an attacker
might have stolen (`Loot`), answers each line of its standard input with what it has seen (`View`),
and ends with it. Runs: `own` is for the pod under test; `other` has a shim already.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import secrets
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fde_ray.model.base import Record, sha256_hex
from fde_ray.model.clock import Clock, SystemClock
from fde_ray.model.dialogue import AgentTurn, Replied
from fde_ray.model.ids import GradeIdentity, RunIdentity
from fde_ray.model.plan import RunPlan
from fde_ray.model.session import Mount, SessionInputs, SessionLimits
from fde_ray.model.specs import Condition, Customer, Limits, Panel, System
from fde_ray.model.states import Channel, ConditionKind, Scope
from fde_ray.store.objects import FolderStore
from fde_ray.store.runs import RunStore

from .app import run_plane_app
from .messages import TokenRequest
from .plane import Plane
from .serve import served_on_port
from .signing import SigningKey
from .tokens import TokenSigner

MODEL = "offline/nobody"
PANEL = tuple(f"offline/m{number}" for number in range(5))
SHA = sha256_hex("proof")
LIMITS = SessionLimits(
    time_s=900.0, cpu=0.2, memory_bytes=256 << 20, disk_bytes=64 << 20, processes=256,
    archive_bytes=64 << 20, pause_cap_s=60.0,
)  # fmt: skip
_STALE_S = 7200.0
_REPLY_EVERY_S = 0.5


class Loot(Record):
    """token: of the other run, good. replayed: of a shim of it that came before."""

    port: int
    subject: str
    secret: str
    other_subject: str
    token: str
    replayed: str
    expired: str
    sealed: str
    """A text in the sealed archive of both runs."""


class Seen(Record):
    method: str
    path: str
    status: int


class View(Record):
    requests: tuple[Seen, ...]
    turns: dict[str, tuple[str, ...]]
    """Subject → what its agent said."""


class _Stale:
    """A clock of two hours ago, by which tokens of now have been over for long."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now(self) -> float:
        return self._clock.now() - _STALE_S

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


class _NoCalls:
    """No model is behind this plane."""

    async def complete(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("there is no model here")

    def stream(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise RuntimeError("there is no model here")

    def counts(self, *_: Any) -> bool:
        return False


class Proof:
    """The plane, its two runs, and a note of every request."""

    def __init__(self, store: RunStore, objects: FolderStore, clock: Clock) -> None:
        self._store, self._objects, self._clock = store, objects, clock
        self._key = SigningKey("proof", secrets.token_bytes(32))
        self._signer = TokenSigner(self._key, clock)
        self._plane = Plane(
            store=store, objects=objects, calls=_NoCalls(), signer=self._signer, clock=clock
        )
        self._seen: list[Seen] = []
        self._own, self._other = (f"{secrets.token_hex(16)}.1" for _ in range(2))
        self._sealed = f"sealed-{secrets.token_hex(12)}"

    async def prepare(self) -> None:
        """Have both runs on the way, each with a visible archive and a sealed one."""
        for name in ("visible", "sealed"):
            text = f"{name} archive; {self._sealed if name == 'sealed' else 'nothing hidden'}"
            await self._objects.create(_key_of(name), _archive(name, text.encode()))
        plans = [_plan(subject.partition(".")[0]) for subject in (self._own, self._other)]
        await self._store.submit_sweep("local", "proof", {"name": "proof"}, plans)
        epoch = (await self._store.take_lease()).epoch
        for subject in (self._own, self._other):
            run_id = subject.partition(".")[0]
            await self._store.open_attempt(run_id, epoch, _inputs(subject))

    async def loot(self, port: int) -> Loot:
        replayed, token = [await self._token(nonce) for nonce in ("first", "second")]
        await self._plane.started(token)
        return Loot(
            port=port,
            subject=self._own,
            secret=self._signer.bootstrap_secret(self._own),
            other_subject=self._other,
            token=token,
            replayed=replayed,
            expired=self._expired(),
            sealed=self._sealed,
        )

    async def view(self) -> View:
        turns = {
            subject: tuple(
                event.text
                for event in await self._store.dialogue(subject)
                if isinstance(event, AgentTurn)
            )
            for subject in (self._own, self._other)
        }
        return View(requests=tuple(self._seen), turns=turns)

    async def reply_on(self) -> None:
        """Tell every agent to go on, as soon as it says something."""
        while True:
            for subject in (self._own, self._other):
                events = await self._store.dialogue(subject)
                if events and isinstance(events[-1], AgentTurn):
                    reply = Replied(
                        seq=len(events) + 1, at=self._clock.now(), action="push", message="Go on.",
                        turn_no=events[-1].turn_no,
                    )  # fmt: skip
                    await self._store.append_event(subject, reply)
            await self._clock.sleep(_REPLY_EVERY_S)

    @asynccontextmanager
    async def served(self, address: str) -> AsyncIterator[int]:
        app = run_plane_app(self._plane, self._clock)
        app.add_middleware(_Noted, note=self._note)
        async with served_on_port(app, address) as port:
            yield port

    def _note(self, method: str, path: str, status: int) -> None:
        self._seen.append(Seen(method=method, path=path, status=status))

    async def _token(self, nonce: str) -> str:
        secret = self._signer.bootstrap_secret(self._other)
        request = TokenRequest(subject=self._other, secret=secret, nonce=nonce, scope=Scope.SOLVE)
        return (await self._plane.issue_token(request)).token

    def _expired(self) -> str:
        stale = TokenSigner(self._key, _Stale(self._clock))
        return stale.mint(
            subject=self._other, run=self._other.partition(".")[0], role="solve",
            scope=Scope.SOLVE, models=(MODEL,), serial=1, nonce="first",
        )  # fmt: skip


class _Noted:
    """Plain ASGI around the app: what was asked, and with which status it was answered."""

    def __init__(self, app: Any, note: Callable[[str, str, int], None]) -> None:
        self._app, self._note = app, note

    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]
    ) -> None:
        async def noted(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._note(scope["method"], scope["path"], message["status"])
            await send(message)

        await self._app(scope, receive, noted if scope["type"] == "http" else send)


def _key_of(name: str) -> str:
    return f"local/cases/{name}/{SHA}"


def _archive(name: str, data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo(f"{name}.txt")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _inputs(subject: str) -> SessionInputs:
    return SessionInputs(
        subject=subject, role="solve", scaffold="minimal", model=MODEL, channel=Channel.TEXT,
        prompt=f"The prompt of {subject}.", has_questions=True, limits=LIMITS,
        mounts=(Mount(archive="visible", at="/workspace"),),
        archives={"visible": _key_of("visible")},
    )  # fmt: skip


def _plan(run_id: str) -> RunPlan:
    condition = Condition(kind=ConditionKind.HIDDEN)
    system = System(name="proof", scaffold="minimal", model=MODEL)
    limits, panel, customer = Limits(), Panel(models=PANEL), Customer(model=MODEL)
    identity = RunIdentity(
        case_id="017", visible_hash=SHA, prompt_hash=SHA, condition=condition, system=system,
        scaffold_lock=SHA, channel=Channel.TEXT, solve_pack=SHA, information_hash=SHA,
        customer_model=customer.model, customer_temperature=None,
        customer_max_tokens=customer.max_tokens, customer_failure=customer.failure,
        detectors=PANEL, limits=limits, budget_usd_per_run=None, repeat=1,
    )  # fmt: skip
    graded = GradeIdentity(
        scoring_hash=SHA, gt_hash=SHA, information_hash=SHA, grade_pack=SHA, panel=PANEL,
        panel_time_s=panel.time, panel_steps=panel.steps, judges=PANEL, passthrough=False,
        panel_stop="three_agree", evaluator_exception="fault",
    )  # fmt: skip
    return RunPlan(
        run_id=run_id, grade_id=SHA[:32], sweep="proof", case_id="017", condition=condition,
        system=system, repeat=1, channel=Channel.TEXT, oracle_points=None, prompt="A prompt.",
        limits=limits, customer=customer, panel=panel, detectors=PANEL, judges=PANEL,
        prompt_pack="builtin", budget_usd_per_run=None, identity=identity, grade_identity=graded,
    )  # fmt: skip


async def serve(address: str) -> None:
    clock = SystemClock()
    with tempfile.TemporaryDirectory(prefix="fde-proof-") as folder:
        objects = FolderStore(Path(folder) / "objects")
        async with RunStore(Path(folder) / "runs.db", clock) as store:
            proof = Proof(store, objects, clock)
            await proof.prepare()
            async with proof.served(address) as port, asyncio.TaskGroup() as tasks:
                print((await proof.loot(port)).model_dump_json(), flush=True)
                replying = tasks.create_task(proof.reply_on(), name="replies")
                while await asyncio.to_thread(sys.stdin.readline):
                    print((await proof.view()).model_dump_json(), flush=True)
                replying.cancel()
        objects.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m fde_ray.gateway.proving")
    parser.add_argument("--listen", required=True, metavar="ADDRESS")
    asyncio.run(serve(parser.parse_args().listen))
