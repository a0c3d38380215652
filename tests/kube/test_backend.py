"""The sandbox `kubernetes` on a real API server and kubelet: pods begin, are found, and end."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cluster.lab.layout import Layout, image
from fde_ray.model.clock import SystemClock
from fde_ray.model.errors import SandboxError
from fde_ray.model.failures import FailureKind
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.model.session import SessionLimits
from fde_ray.sandbox.kubernetes.backend import KubernetesSandbox, opened_kubernetes
from fde_ray.sandbox.kubernetes.pods import Surroundings, run_pod
from fde_ray.sandbox.records import MountPoint, PodHandle, SessionStart
from tests.kube.kubectl import Kubectl
from tests.kube.pods import MOSTLY_GVISOR

pytestmark = pytest.mark.kube

Object = dict[str, Any]
Change = Callable[[Object], None]
RUN = "c4" * 16
LIMITS = SessionLimits(
    time_s=300.0,
    cpu=0.1,
    memory_bytes=96 << 20,
    disk_bytes=16 << 20,
    processes=64,
    archive_bytes=8 << 20,
    pause_cap_s=60.0,
)
WAITS = "import time\nwhile True: time.sleep(1)"
HEALTHY = """
import http.server
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(('', 9201), Health).serve_forever()
"""
EATS_MEMORY = "import time; time.sleep(3); held = [bytearray(1 << 20) for _ in range(4096)]"
FILLS_DISK = """
import time
with open('/workspace/much', 'wb') as file:
    for _ in range(64): file.write(bytes(1 << 20)); file.flush()
while True: time.sleep(1)
"""


def session(subject: str = f"{RUN}.1", **more: Any) -> SessionStart:
    return SessionStart.model_validate(
        {
            "subject": subject,
            "role": "solve",
            "plane_socket": "http://10.250.0.2:9",
            "secret": f"of {os.getpid()}",
            "limits": LIMITS,
            "mounts": (MountPoint(at="/workspace"),),
        }
        | more
    )


class Cluster:
    """The sandbox in a namespace of a test."""

    def __init__(
        self, sandbox: KubernetesSandbox, profile: KubernetesProfile, kubectl: Kubectl
    ) -> None:
        self.sandbox, self.profile, self._kubectl = sandbox, profile, kubectl

    async def begun(self, change: Change | None = None, subject: str = f"{RUN}.1") -> PodHandle:
        """Start a session whose pod is changed first, as the test says."""
        pod = run_pod(session(subject), self.profile, Surroundings())
        if change is not None:
            change(pod)
        return self.sandbox._handle(await self.sandbox._starter.started(pod))

    async def kubectl(self, *words: str, text: str = "") -> str:
        return await asyncio.to_thread(
            self._kubectl.run, *words, "-n", self.profile.namespace, text=text
        )

    async def pod(self, handle: PodHandle) -> Object:
        found: Object = json.loads(await self.kubectl("get", "pod", handle.name, "-o", "json"))
        return found

    async def pods(self) -> list[str]:
        found = json.loads(await self.kubectl("get", "pods", "-o", "json"))
        return [one["metadata"]["name"] for one in found["items"]]

    async def over(self, handle: PodHandle, within_s: float = 60.0) -> FailureKind | None:
        """Return why the session is over, once it is."""
        await until(lambda: self._is_over(handle), within_s)
        return (await self.sandbox.outcome(handle)).failure

    async def agent_end(self, handle: PodHandle) -> FailureKind | None:
        """Return how the agent ended, once it has."""

        async def has_ended() -> bool:
            return (await self.sandbox.agent_end(handle)) is not None

        await until(has_ended, 60)
        outcome = await self.sandbox.agent_end(handle)
        return outcome and outcome.failure

    async def _is_over(self, handle: PodHandle) -> bool:
        return bool(await self.sandbox.over([handle]))


async def until(holds: Callable[[], Awaitable[bool]], within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while not await holds():  # noqa: ASYNC110  (whatever it is)
            await asyncio.sleep(0.1)


def programs(shim: str = HEALTHY, agent: str = WAITS) -> Change:
    """Return what puts other programs into a pod."""

    def change(pod: Object) -> None:
        for container, script in zip(pod["spec"]["containers"], (shim, agent), strict=True):
            container["command"] = ["python3", "-u", "-c", script]

    return change


Opening = Callable[..., Any]


@pytest.fixture
def opening(kubectl: Kubectl, namespace: str, layout: Layout) -> Opening:
    """Open the sandbox in the namespace of the test."""

    @asynccontextmanager
    async def opened(runtime: str = "runc", **more: Any) -> AsyncIterator[Cluster]:
        wanted = {
            "namespace": namespace,
            "image": image("run"),
            "pull": "Never",
            "kubeconfig": str(layout.kubeconfig),
            "runtime_class": runtime,
            "shim_cpu": 0.05,
            "shim_memory": "128MiB",
        }
        profile = KubernetesProfile.model_validate(wanted | more)
        async with opened_kubernetes(profile, {}, SystemClock()) as sandbox:
            yield Cluster(sandbox, profile, kubectl)

    return opened


@pytest.mark.parametrize("runtime", MOSTLY_GVISOR)
async def test_a_session_begins_is_found_again_and_goes(opening: Opening, runtime: str) -> None:
    async with opening(runtime) as first:
        handle = await first.sandbox.start(session())
        assert await first.sandbox.state(handle) == "running"
        async with opening(runtime) as second:
            assert second.sandbox.handle_of(handle.subject) == handle
            assert await second.sandbox.start(session()) == handle
        assert first.sandbox._facts.version.startswith("v1.34")
        await first.sandbox.stop(handle)
        assert await first.over(handle) is not None
        await first.sandbox.remove(handle)
        assert await first.pods() == []
        await first.sandbox.remove(handle)


async def test_a_pod_of_another_secret_is_the_same_pod_and_of_another_size_is_not(
    opening: Opening,
) -> None:
    async with opening() as cluster:
        await cluster.sandbox.start(session())
        bigger = LIMITS.evolve(memory_bytes=128 << 20)
        with pytest.raises(SandboxError, match="is there with another spec"):
            await cluster.sandbox.start(session(limits=bigger))


async def test_a_pod_that_somebody_deletes_is_lost(opening: Opening) -> None:
    async with opening() as cluster:
        handle = await cluster.begun(programs())
        await cluster.kubectl("delete", "pod", handle.name, "--grace-period=1")
        assert await cluster.over(handle) is FailureKind.POD_LOST
        assert await cluster.sandbox.state(handle) == "lost"


async def test_a_pod_that_is_made_again_by_somebody_is_another(opening: Opening) -> None:
    async with opening() as cluster:
        handle = await cluster.begun(programs())
        await cluster.kubectl("delete", "pod", handle.name, "--grace-period=1")
        again = await cluster.begun(programs())
        assert again.name == handle.name
        assert await cluster.over(handle) is FailureKind.POD_REPLACED
        await cluster.sandbox.remove(handle)
        assert await cluster.pods() == [again.name], "only the pod that is meant is deleted"


async def test_memory_that_is_used_up_is_the_agents_and_the_shim_lives(opening: Opening) -> None:
    async with opening("runc") as cluster:
        handle = await cluster.begun(programs(agent=EATS_MEMORY))
        assert await cluster.agent_end(handle) is FailureKind.AGENT_RESOURCE
        assert await cluster.sandbox.state(handle) == "running"


async def test_memory_of_a_whole_pod_that_is_used_up_is_the_agents(opening: Opening) -> None:
    """In gVisor the containers of a pod share one process, and its end."""
    async with opening("gvisor") as cluster:
        handle = await cluster.begun(programs(agent=EATS_MEMORY))
        assert await cluster.agent_end(handle) is FailureKind.AGENT_RESOURCE
        assert await cluster.over(handle) is FailureKind.AGENT_RESOURCE


@pytest.mark.parametrize("runtime", MOSTLY_GVISOR)
async def test_a_disk_that_is_used_up_is_the_agents_and_ends_the_pod(
    opening: Opening, runtime: str
) -> None:
    async with opening(runtime) as cluster:
        handle = await cluster.begun(programs(agent=FILLS_DISK))
        assert await cluster.over(handle, 120) is FailureKind.AGENT_RESOURCE
        assert (await cluster.pod(handle))["status"]["reason"] == "Evicted"
        assert await cluster.sandbox.state(handle) == "lost"


async def test_an_agent_that_ends_by_itself_is_its_own_error(opening: Opening) -> None:
    async with opening() as cluster:
        handle = await cluster.begun(programs(agent="import sys; sys.exit(3)"))
        assert await cluster.agent_end(handle) is FailureKind.AGENT_ERROR
        outcome = await cluster.sandbox.agent_end(handle)
        assert outcome is not None
        assert "code 3" in outcome.detail


async def test_the_last_words_of_a_shim_are_its_outcome(opening: Opening) -> None:
    words = json.dumps({"phase": "ended", "failure": None, "detail": "as it should"})
    says = f"open('/dev/termination-log', 'w').write({words!r})"
    async with opening() as cluster:
        handle = await cluster.begun(programs(shim=says, agent="pass"))
        assert await cluster.over(handle) is None
        assert await cluster.sandbox.state(handle) == "ended"
        outcome = await cluster.sandbox.outcome(handle)
        assert (outcome.phase, outcome.detail) == ("ended", "as it should")


async def test_an_eviction_as_by_a_drain_is_infra(opening: Opening) -> None:
    async with opening() as cluster:
        handle = await cluster.begun(programs())
        place = f"/api/v1/namespaces/{handle.namespace}/pods/{handle.name}/eviction"
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": handle.name, "namespace": handle.namespace},
            "deleteOptions": {"gracePeriodSeconds": 1},
        }
        await cluster.kubectl("create", "--raw", place, "-f", "-", text=json.dumps(eviction))
        assert await cluster.over(handle) is FailureKind.NODE_DRAINED


async def test_an_image_that_is_not_there_ends_the_start(opening: Opening) -> None:
    async with opening(image="localhost/nothing:1", start_within="5s") as cluster:
        with pytest.raises(SandboxError, match="ErrImageNeverPull") as caught:
            await cluster.sandbox.start(session())
        assert caught.value.kind is FailureKind.IMAGE_PULL
        assert await cluster.pods() == []


async def test_a_pod_without_a_node_is_given_up_after_its_time(opening: Opening) -> None:
    async with opening(schedule_within="3s") as cluster:
        with pytest.raises(SandboxError, match="Insufficient cpu") as caught:
            await cluster.sandbox.start(session(limits=LIMITS.evolve(cpu=500.0)))
        assert caught.value.kind is FailureKind.UNSCHEDULABLE
        assert await cluster.pods() == []


async def test_a_pod_that_its_node_refuses_is_infra(opening: Opening) -> None:
    def too_big(pod: Object) -> None:
        pod["spec"]["nodeName"] = "lab"
        for sizes in pod["spec"]["containers"][1]["resources"].values():
            sizes["cpu"] = "500"

    async with opening() as cluster:
        with pytest.raises(SandboxError, match="OutOfcpu") as caught:
            await cluster.begun(too_big)
        assert caught.value.kind is FailureKind.NODE_REJECTED


async def test_a_pod_that_outlives_its_deadline_is_infra(opening: Opening) -> None:
    def short(pod: Object) -> None:
        programs()(pod)
        pod["spec"]["activeDeadlineSeconds"] = 5
        pod["spec"]["terminationGracePeriodSeconds"] = 1

    async with opening() as cluster:
        handle = await cluster.begun(short)
        assert await cluster.over(handle) is FailureKind.POD_DEADLINE


async def test_a_class_of_runtime_that_is_not_there_takes_no_pod(opening: Opening) -> None:
    async with opening("no-such-runtime") as cluster:
        with pytest.raises(SandboxError, match="no-such-runtime"):
            await cluster.sandbox.start(session())


async def test_only_the_shards_that_are_asked_for_are_watched(opening: Opening) -> None:
    async with opening() as cluster, opening() as other:
        await other.sandbox.watch_shards({0x01})
        mine = await cluster.begun(programs(), "01" * 16 + ".1")
        theirs = await cluster.begun(programs(), "02" * 16 + ".1")

        async def seen() -> bool:
            return other.sandbox.handle_of(mine.subject) is not None

        await until(seen, 10)
        assert other.sandbox.handle_of(theirs.subject) is None
        assert await other.sandbox.over([mine, theirs]) == frozenset()
        assert await other.sandbox.state(theirs) == "running", "asked for by its name"
        await other.sandbox.watch_shards({0x02})
        assert other.sandbox.handle_of(theirs.subject) == theirs
        assert other.sandbox.handle_of(mine.subject) is None


async def test_what_nobody_keeps_is_swept(opening: Opening) -> None:
    async with opening() as cluster:
        kept = await cluster.begun(programs(), f"{RUN}.1")
        orphan = await cluster.begun(programs(), f"{RUN}.2")

        async def keeps() -> set[str]:
            return {kept.subject}

        assert await cluster.sandbox.sweep(keeps, 3600) == []
        assert await cluster.sandbox.sweep(keeps, 0) == [orphan.subject]
        assert await cluster.pods() == [kept.name]
