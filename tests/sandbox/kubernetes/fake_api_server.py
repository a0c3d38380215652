"""A fake API server for pods: enough of the real one's habits, and every fault on demand.

Not a cluster: nothing runs. Tests play kubelet and scheduler by `change`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import json
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web

from fde_ray.model.kubernetes import KubernetesProfile

Object = dict[str, Any]
NAMESPACE = "runs"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


class Asked(NamedTuple):
    verb: str
    path: str
    query: dict[str, str]


class ScaledClock:
    """Time that goes `factor` times as fast as the machine's."""

    def __init__(self, factor: float = 50.0) -> None:
        self._factor, self._began, self._at = factor, time.monotonic(), time.time()

    def now(self) -> float:
        return self._at + (time.monotonic() - self._began) * self._factor

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._factor)


class FakeApiServer:
    """tokens: those that are let in; None = anybody. auto: what a kubelet does by itself."""

    def __init__(self, clock: ScaledClock) -> None:
        self.clock = clock
        self.pods: dict[str, Object] = {}
        self.tokens: set[str] | None = None
        self.faults: list[Fault] = []
        self.requests: list[Asked] = []
        self.kubelet_ends_pods = True
        self.on_create: Callable[[str], Awaitable[None]] | None = None
        self.oldest = 0
        self.page_tokens: dict[str, tuple[int, list[Object]]] = {}
        self._events: list[tuple[int, str, Object]] = []
        self._news = asyncio.Condition()
        self._versions = itertools.count(1000)
        self.version = 1000
        self.port = 0

    # what tests do

    @property
    def counts(self) -> Counter[str]:
        """Requests by verb; a watch is a verb of its own."""
        return Counter(asked.verb for asked in self.requests)

    async def change(self, name: str, **status: Any) -> None:
        """Change the status of a pod, as kubelet and scheduler do."""
        pod = self.pods[name]
        node = status.pop("node", None)
        if node is not None:
            pod["spec"]["nodeName"] = node
        pod["status"].update(status)
        await self._happened("MODIFIED", pod)

    async def run(self, name: str, **more: Any) -> None:
        both = [container(one, running={}) for one in ("shim", "agent")]
        await self.change(name, node="n1", phase="Running", containerStatuses=both, **more)

    async def mark_deleted(self, name: str, grace_s: float) -> None:
        self.pods[name]["metadata"]["deletionTimestamp"] = stamp(self.clock.now() + grace_s)
        await self._happened("MODIFIED", self.pods[name])

    async def vanish(self, name: str) -> None:
        pod = self.pods.pop(name)
        await self._happened("DELETED", pod)

    def change_silently(self, name: str, **status: Any) -> None:
        """Change a pod so that no watch tells it: only a list does."""
        self.pods[name]["status"].update(status)
        self.pods[name]["metadata"]["resourceVersion"] = str(self._next())

    def forget(self) -> None:
        """Let versions before now be too old."""
        self.oldest = self.version

    async def wait_for(self, holds: Callable[[], bool], within_s: float = 5.0) -> None:
        async with asyncio.timeout(within_s):
            while not holds():  # noqa: ASYNC110  (any state may be waited for)
                await asyncio.sleep(0.002)

    def add(self, pod: Object) -> Object:
        metadata, spec = pod["metadata"], pod.setdefault("spec", {})
        metadata.setdefault("uid", str(uuid.uuid4()))
        metadata.setdefault("creationTimestamp", stamp(self.clock.now()))
        metadata["resourceVersion"] = str(self._next())
        spec.setdefault("nodeName", None)
        pod.setdefault("status", {"phase": "Pending"})
        self.pods[metadata["name"]] = pod
        self._events.append((self.version, "ADDED", copy.deepcopy(pod)))
        return pod

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeApiServer]:
        app = web.Application(middlewares=[self._guarded])
        app.router.add_get("/version", self._version)
        app.router.add_get(PODS, self._list)
        app.router.add_post(PODS, self._create)
        app.router.add_get(PODS + "/{name}", self._get)
        app.router.add_delete(PODS + "/{name}", self._delete)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()

    def kubeconfig(self, folder: Path, token: str = "one") -> Path:
        """Return a kubeconfig whose token is read from the file `token` beside it."""
        (folder / "token").write_text(token)
        path = folder / "kubeconfig"
        cluster = {"server": f"http://127.0.0.1:{self.port}"}
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": cluster}],
                    "users": [{"name": "u", "user": {"tokenFile": str(folder / "token")}}],
                }
            )
        )
        return path

    def profile(self, folder: Path, **more: Any) -> KubernetesProfile:
        wanted = {
            "namespace": NAMESPACE,
            "image": "fde-ray/agent:test",
            "pull": "Never",
            "kubeconfig": str(self.kubeconfig(folder)),
        }
        return KubernetesProfile.model_validate(wanted | more)

    # what the server does

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Any) -> web.StreamResponse:
        is_watch = request.query.get("watch") == "true"
        verb = "WATCH" if is_watch else request.method
        self.requests.append(Asked(verb, request.path, dict(request.query)))
        for fault in tuple(self.faults):
            reply = await fault(request)
            if reply is not None:
                return reply
        words = request.headers.get("Authorization", "").split()
        if self.tokens is not None and (len(words) != 2 or words[1] not in self.tokens):
            return status(401, "Unauthorized")
        reply = await handler(request)
        assert isinstance(reply, web.StreamResponse)
        return reply

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"gitVersion": "v1.34.4"})

    async def _create(self, request: web.Request) -> web.Response:
        if request.query.get("fieldValidation") != "Strict":
            return status(400, "BadRequest", "a mistyped field would be dropped in silence")
        pod = await request.json()
        name = pod["metadata"]["name"]
        if name in self.pods:
            return status(409, "AlreadyExists", f'pods "{name}" already exists')
        self.add(pod)
        told = copy.deepcopy(pod)
        await self._tell()
        if self.on_create is not None:
            await self.on_create(name)
        return web.json_response(told, status=201)

    async def _get(self, request: web.Request) -> web.Response:
        pod = self.pods.get(request.match_info["name"])
        return status(404, "NotFound") if pod is None else web.json_response(pod)

    async def _delete(self, request: web.Request) -> web.Response:
        pod, body = self.pods.get(request.match_info["name"]), await request.json()
        if pod is None:
            return status(404, "NotFound")
        name, metadata = pod["metadata"]["name"], pod["metadata"]
        if body["preconditions"]["uid"] != metadata["uid"]:
            return status(409, "Conflict", "the UID in the precondition does not match")
        grace = body["gracePeriodSeconds"]
        has_ended = pod["status"].get("phase") in ("Succeeded", "Failed")
        if grace == 0 or has_ended or not pod["spec"].get("nodeName"):
            metadata["deletionGracePeriodSeconds"] = 0
            self.pods.pop(name)
            await self._happened("DELETED", pod)
            return web.json_response(pod)
        metadata["deletionTimestamp"] = stamp(self.clock.now() + grace)
        metadata["deletionGracePeriodSeconds"] = grace
        await self._happened("MODIFIED", pod)
        told = copy.deepcopy(pod)
        if self.kubelet_ends_pods:
            self.pods.pop(name)
            await self._happened("DELETED", pod)
        return web.json_response(told)

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch") == "true":
            return await self._watched(request)
        if "continue" in request.query:
            version, found = self.page_tokens.pop(request.query["continue"])
            if version < self.oldest:
                return status(410, "Expired")
        else:
            version, found = self.version, self._selected(request)
        limit = int(request.query.get("limit", 500))
        page, rest = found[:limit], found[limit:]
        metadata = {"resourceVersion": str(version)}
        if rest:
            token = uuid.uuid4().hex
            self.page_tokens[token] = version, rest
            metadata["continue"] = token
        return web.json_response({"kind": "PodList", "metadata": metadata, "items": page})

    def _selected(self, request: web.Request) -> list[Object]:
        matches = matcher(request.query.get("labelSelector", ""))
        # Newest first: the order of a list means nothing.
        found = [pod for pod in self.pods.values() if matches(pod["metadata"].get("labels", {}))]
        return copy.deepcopy(found[::-1])

    async def _watched(self, request: web.Request) -> web.StreamResponse:
        at = int(request.query["resourceVersion"])
        if at < self.oldest:
            return status(410, "Expired", "too old resource version")
        matches = matcher(request.query.get("labelSelector", ""))
        reply = web.StreamResponse()
        reply.enable_chunked_encoding()
        await reply.prepare(request)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while True:
                events = [event for event in self._events if event[0] > at]
                for version, kind, pod in events:
                    at = version
                    if kind == "BROKEN":
                        return reply
                    if kind == "RAW" or matches(pod["metadata"].get("labels", {})):
                        data = pod["raw"] if kind == "RAW" else event_line(kind, pod)
                        for piece in data if isinstance(data, list) else [data]:
                            await reply.write(piece)
                async with self._news:
                    await self._news.wait_for(lambda: self.version > at)  # noqa: B023
        return reply

    async def say(self, *pieces: bytes) -> None:
        """Send raw bytes down every watch."""
        self._events.append((self._next(), "RAW", {"raw": list(pieces)}))
        await self._tell()

    async def break_watches(self) -> None:
        """End every watch that is open."""
        self._events.append((self._next(), "BROKEN", {}))
        await self._tell()

    async def _happened(self, kind: str, pod: Object) -> None:
        pod["metadata"]["resourceVersion"] = str(self._next())
        self._events.append((self.version, kind, copy.deepcopy(pod)))
        await self._tell()

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    def _next(self) -> int:
        self.version = next(self._versions)
        return self.version


def container(name: str, restarts: int = 0, **state: Any) -> Object:
    """A container's status; `running={}`, `waiting={…}` or `terminated={…}`."""
    return {"name": name, "restartCount": restarts, "state": state}


def ended(name: str, code: int | None = 0, reason: str = "Completed", **more: Any) -> Object:
    restarts = more.pop("restarts", 0)
    return container(name, restarts, terminated={"exitCode": code, "reason": reason, **more})


def status(
    code: int, reason: str, message: str = "", headers: dict[str, str] | None = None
) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message or reason}
    return web.json_response(body, status=code, headers=headers)


def event_line(kind: str, pod: Object) -> bytes:
    return json.dumps({"type": kind, "object": pod}, ensure_ascii=False).encode() + b"\n"


def error_line(code: int, reason: str) -> bytes:
    found = {"kind": "Status", "code": code, "reason": reason, "message": reason}
    return json.dumps({"type": "ERROR", "object": found}).encode() + b"\n"


def matcher(selector: str) -> Callable[[dict[str, str]], bool]:
    """Understand what our watch asks for: `a=b`, `a`, `a in (b,c)`."""
    tests: list[tuple[str, set[str] | None]] = []
    if " in (" in selector:
        head, _, listed = selector.partition(" in (")
        selector, _, key = head.rpartition(",")
        tests.append((key, set(listed.rstrip(")").split(","))))
    for part in filter(None, selector.split(",")):
        key, _, value = part.partition("=")
        tests.append((key, {value} if value else None))
    return lambda labels: all(
        key in labels and (values is None or labels[key] in values) for key, values in tests
    )


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def failing(
    verb: str, reply: Callable[[], web.Response], *, times: int | None = None, every: int = 1
) -> Fault:
    """Answer every so manyth request of a verb with this, so many times."""
    seen = itertools.count(1)
    left = itertools.count()

    async def fault(request: web.Request) -> web.Response | None:
        is_watch = request.query.get("watch") == "true"
        if verb not in ("*", "WATCH" if is_watch else request.method):
            return None
        if next(seen) % every or (times is not None and next(left) >= times):
            return None
        return reply()

    return fault
