"""Real run-planes on one PostgreSQL, and what surrounds them: a provider, a driver, shims.

The provider counts what it is asked; a shim holds what it was asked until a replica serves it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import yaml
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from fde_ray.gateway.serve import served_on_port
from fde_ray.gateway.signing import load_signing_key
from fde_ray.gateway.tokens import TokenSigner
from fde_ray.metering.shares import NANO_PER_DOLLAR
from fde_ray.model.clock import SystemClock
from fde_ray.model.errors import StoreError
from fde_ray.model.session import SessionLimits
from fde_ray.model.states import SolveEnd
from fde_ray.store.runs import RunStore, StoreLocation
from tests.gateway.zygote import Zygote
from tests.store.builders import make_inputs, make_plan, make_replied, run_id

MODEL = "openai/m"
PRICES = {
    "version": "v",
    "currency": "USD",
    "models": {MODEL: {"per_million": {"input": "1.00", "output": "2.00"}, "source": "test"}},
}
LIMITS = SessionLimits(
    time_s=3600,
    cpu=1,
    memory_bytes=1 << 30,
    disk_bytes=1 << 30,
    processes=64,
    archive_bytes=1 << 20,
    pause_cap_s=21_600,
)
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
COST_NANOUSD = 7 * 1000 + 3 * 2000


FIRST_DELAY_S, LAST_DELAY_S = 0.1, 2.0


class Provider:
    """Echoes the prompt after a while."""

    def __init__(self, rng: random.Random) -> None:
        self.asked: Counter[str] = Counter()
        self._rng = rng
        self.app = FastAPI()
        self.app.add_route("/v1/chat/completions", self._chat, methods=["POST"])

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        prompt = body["messages"][0]["content"]
        self.asked[prompt] += 1
        await asyncio.sleep(self._rng.uniform(0.0, 0.08))
        head = {"id": "x", "created": 0, "model": "m"}
        if not body.get("stream"):
            message = {"role": "assistant", "content": f"echo {prompt}"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return JSONResponse(head | {"choices": [choice], "usage": USAGE})
        return StreamingResponse(self._streamed(head, prompt), media_type="text/event-stream")

    async def _streamed(self, head: dict[str, Any], prompt: str) -> AsyncIterator[bytes]:
        head = head | {"object": "chat.completion.chunk"}
        for word in ("echo ", prompt):
            choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
            yield _event(head | {"choices": [choice]})
            await asyncio.sleep(self._rng.uniform(0.0, 0.03))
        yield _event(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        yield _event(head | {"choices": [], "usage": USAGE})
        yield b"data: [DONE]\n\n"


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


class Replica:
    def __init__(self, zygote: Zygote, profile: Path, name: str) -> None:
        self._zygote, self._profile = zygote, profile
        self.socket = profile.parent / f"{name}.sock"
        self.admin = profile.parent / f"{name}.admin.sock"
        self.pid: int | None = None

    def start(self) -> None:
        self.pid = self._zygote.started(
            *("serve", "run-plane", "--profile", str(self._profile), "--grace", "20s"),
            *("--listen", f"unix:{self.socket}", "--admin", f"unix:{self.admin}"),
        )

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self.pid is not None
        os.kill(self.pid, number)

    @property
    def lives(self) -> bool:
        return self.pid is not None and Path(f"/proc/{self.pid}").exists()

    async def ready(self) -> None:
        transport = httpx.AsyncHTTPTransport(uds=str(self.admin), retries=0)
        async with (
            asyncio.timeout(60),
            httpx.AsyncClient(transport=transport, base_url="http://admin") as client,
        ):
            while True:
                try:
                    if (await client.get("/readyz")).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(0.05)

    async def measured(self) -> str:
        transport = httpx.AsyncHTTPTransport(uds=str(self.admin))
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
            return (await client.get("/metrics")).text


class Wrong(AssertionError):
    """A shim was told that something is its agent's fault."""


class Broke(Wrong):
    """A shim was told that its run's money is spent."""


class Shim:
    """Plays one attempt to its end, with whichever replica answers."""

    def __init__(self, fleet: Fleet, subject: str, rng: random.Random) -> None:
        self._fleet, self.subject, self._rng = fleet, subject, rng
        self._secret = fleet.signer.bootstrap_secret(subject)
        self._token = ""
        self._turn = rng.randrange(2)
        self._held: set[str] = set()
        self.answered: dict[str, str] = {}
        """call id -> prompt"""

    async def opened(self) -> str:
        """Start the agent's clock; return the token."""
        body = {"subject": self.subject, "secret": self._secret, "nonce": "n", "scope": "solve"}
        self._token = (await self._insisted("POST", "/v1/token", body))["token"]
        await self._insisted("POST", "/v1/started", {})
        return self._token

    async def play(self, calls: int) -> int:
        """Work until a reply ends it; return how many turns there were."""
        await self.opened()
        beats = asyncio.create_task(self._beat(), name="beats")
        try:
            for turn_no in count(1):
                async with asyncio.TaskGroup() as group:
                    for number in range(calls):
                        group.create_task(self._call(f"{turn_no}-{number}", number % 2 == 1))
                if await self._ask(turn_no) == "finish":
                    return turn_no
            raise AssertionError("unreachable")
        finally:
            beats.cancel()
            await asyncio.gather(beats, return_exceptions=True)

    async def _ask(self, turn_no: int) -> str:
        body = {"turn_no": turn_no, "channel": "text", "text": "?", "has_deliverable": True}
        reply = await self._insisted("POST", "/v1/turns", body)
        while reply["status"] != "done":
            reply = await self._insisted("GET", f"/v1/turns/{turn_no}?wait_s=1", None)
        return str(reply["action"])

    async def _call(self, call_id: str, stream: bool) -> None:
        prompt = f"{self.subject} {call_id}"
        body = {"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": prompt}]}
        self._held.add(call_id)
        try:
            said = await self._insisted("POST", "/v1/chat/completions", body, call_id)
        finally:
            self._held.discard(call_id)
        assert said == f"echo {prompt}", said
        self.answered[f"{self.subject}:{call_id}"] = prompt

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            said = await self._insisted("POST", "/v1/heartbeat", {"held": sorted(self._held)})
            if said["state"] != "run" and said["reason"] != "finished":
                raise Wrong(f"told to stop: {said}")

    async def _insisted(
        self, method: str, path: str, body: dict[str, Any] | None, call_id: str = ""
    ) -> Any:
        delay_s = FIRST_DELAY_S
        while True:
            self._turn += 1
            client = self._fleet.clients[self._turn % len(self._fleet.clients)]
            headers = {"authorization": f"Bearer {self._token}"} if self._token else {}
            if call_id:
                headers["x-fde-call-id"] = call_id
            try:
                reply = await client.request(method, path, json=body, headers=headers)
                if reply.status_code < 400:
                    return _said(reply, body)
                error = reply.json()["error"]
                if error["fault"] in ("agent", "budget"):
                    kind = Broke if error["fault"] == "budget" else Wrong
                    raise kind(f"{method} {path}: {error}")
            except (httpx.HTTPError, EOFError):
                pass
            await asyncio.sleep(self._rng.uniform(0.2, 1.0) * delay_s)
            delay_s = min(2 * delay_s, LAST_DELAY_S)


def _said(reply: httpx.Response, body: dict[str, Any] | None) -> Any:
    """Return the JSON, or the text of a completion; EOFError when a stream was cut."""
    if body is None or "messages" not in body:
        return reply.json()
    if not body["stream"]:
        return reply.json()["choices"][0]["message"]["content"]
    lines = [line for line in reply.text.split("\n") if line.startswith("data: ")]
    if not lines or lines[-1] != "data: [DONE]" or "event: refused" in reply.text:
        raise EOFError
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    if any("error" in chunk for chunk in chunks):
        raise EOFError
    texts = [c["choices"][0]["delta"].get("content") or "" for c in chunks if c.get("choices")]
    return "".join(texts)


class Fleet:
    def __init__(
        self, store: RunStore, signer: TokenSigner, provider: Provider, replicas: list[Replica]
    ) -> None:
        self.store, self.signer, self.provider, self.replicas = store, signer, provider, replicas
        self.clients = [_client(replica.socket) for replica in replicas]
        self.least_turns = 1
        self.may_end = asyncio.Event()

    async def leave(self) -> None:
        """Ask all replicas to end, and wait until they have: the last thing that they do is to give
        back what they hold of budgets."""
        for replica in self.replicas:
            replica.kill(signal.SIGTERM)
        async with asyncio.timeout(60):
            while any(replica.lives for replica in self.replicas):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def driven(self) -> None:
        """Answer every turn once; one beyond `least_turns` ends the run as soon as it may end."""
        while True:
            try:
                for subject, turn_no in await self.store.pending_turns():
                    seq = len(await self.store.dialogue(subject)) + 1
                    is_last = self.may_end.is_set() and turn_no >= self.least_turns
                    end = SolveEnd.SUBMITTED if is_last else None
                    await self.store.append_event(subject, make_replied(seq, turn_no, end))
            except StoreError:
                pass
            await asyncio.sleep(0.05)

    async def aclose(self) -> None:
        for client in self.clients:
            await client.aclose()
        for replica in self.replicas:
            with suppress(ProcessLookupError):
                replica.kill()


def _client(socket: Path) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    return httpx.AsyncClient(transport=transport, base_url="http://plane", timeout=30)


@asynccontextmanager
async def running_fleet(
    folder: Path,
    url: str,
    zygote: Zygote,
    *,
    runs: int,
    rng: random.Random,
    replicas: int = 2,
    limits: SessionLimits = LIMITS,
    budgets_usd: Mapping[int, float] | None = None,
    sweep_budget_usd: float | None = None,
) -> AsyncIterator[Fleet]:
    """Open attempts of so many runs, and serve them. budgets_usd: by the number of the run."""
    budgets_usd = budgets_usd or {}
    provider, clock = Provider(rng), SystemClock()
    home, profile = folder / "home", folder / "profile.yaml"
    (folder / "prices.yaml").write_text(yaml.safe_dump(PRICES))
    signer = TokenSigner(load_signing_key(home), clock)
    async with (
        served_on_port(provider.app, "127.0.0.1") as port,
        RunStore.at(StoreLocation(url), clock) as store,
    ):
        profile.write_text(
            yaml.safe_dump(
                {
                    "home": str(home),
                    "store": url,
                    "prices": str(folder / "prices.yaml"),
                    "endpoints": [{"match": "openai/*", "base_url": f"http://127.0.0.1:{port}/v1"}],
                }
            )
        )
        plans = [
            make_plan(n).evolve(budget_usd_per_run=budgets_usd.get(n)) for n in range(1, runs + 1)
        ]
        await store.submit_sweep("local", "demo", {"name": "demo"}, plans)
        if sweep_budget_usd is not None:
            money = round(sweep_budget_usd * NANO_PER_DOLLAR)
            await store.set_sweep_policy("demo", tenant="local", budget_nanousd=money)
        epoch = (await store.take_lease()).epoch
        for n in range(1, runs + 1):
            inputs = make_inputs(f"{run_id(n)}.1", model=MODEL, limits=limits)
            await store.open_attempt(run_id(n), epoch, inputs)
        fleet = Fleet(
            store,
            signer,
            provider,
            [Replica(zygote, profile, f"r{n}") for n in range(replicas)],
        )
        for replica in fleet.replicas:
            await asyncio.to_thread(replica.start)
        await asyncio.gather(*(replica.ready() for replica in fleet.replicas))
        driver = asyncio.create_task(fleet.driven(), name="driver")
        try:
            yield fleet
        finally:
            driver.cancel()
            await asyncio.gather(driver, return_exceptions=True)
            await fleet.aclose()
