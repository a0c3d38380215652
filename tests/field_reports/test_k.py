"""K01 to K30 of the field reports: what Kubernetes and its clients did to others.

Here against a fake API server; `tests/kube` meets the same on a real one. These have no test here:
- K04 to K07, K09, K10, K29: nothing is executed in a pod from outside, nothing is copied out of it
  and no log is followed: a pod calls out, and RBAC allows none of the three (tests of the fence).
- K26: canaries of `fde-ray doctor --cluster` (tests of `checking`).
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from aiohttp import web

from fde_ray.model.errors import SandboxError, UserError
from fde_ray.model.failures import FAILURES, FailureKind
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.sandbox.kubernetes.contract import PREFIX
from fde_ray.sandbox.kubernetes.credentials import Access, is_fit
from fde_ray.sandbox.kubernetes.pods import Surroundings, run_pod
from fde_ray.sandbox.kubernetes.views import pod_view
from fde_ray.shim.gate import Gate, GateSite
from fde_ray.shim.hosts import NotStarted
from tests.sandbox.kubernetes.fake_api_server import (
    FakeApiServer,
    ScaledClock,
    container,
    ended,
    error_line,
    event_line,
    failing,
    status,
)
from tests.sandbox.kubernetes.stage import RUN, bench, name_of, session

DONE = [ended("shim", message=json.dumps({"phase": "ended"})), ended("agent")]


async def test_k01_a_version_that_is_too_old_is_answered_by_a_list(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        handles = [await b.begun(f"{RUN}.{number}") for number in (1, 2, 3)]
        # As an event: what happened meanwhile is told by no event.
        b.api.change_silently(name_of(f"{RUN}.2"), phase="Succeeded", containerStatuses=DONE)
        await b.api.say(error_line(410, "Expired"))
        await b.until(lambda: b.sandbox.watch.lists == 2)
        assert await b.sandbox.over(handles) == {f"{RUN}.2"}
        # As a status of the next watch.
        b.api.change_silently(name_of(f"{RUN}.3"), phase="Succeeded", containerStatuses=DONE)
        b.api.forget()
        await b.api.break_watches()
        await b.until(lambda: b.sandbox.watch.lists == 3)
        assert await b.sandbox.over(handles) == {f"{RUN}.2", f"{RUN}.3"}
        await b.api.change(name_of(f"{RUN}.1"), phase="Succeeded", containerStatuses=DONE)
        await b.seen(name_of(f"{RUN}.1"))
        assert len(await b.sandbox.over(handles)) == 3, "events are heard again"


async def test_k02_empty_replies_are_met_with_patience_and_a_list(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        handle = await b.begun()
        b.api.faults.append(failing("WATCH", lambda: web.Response(body=b"")))
        b.api.change_silently(handle.name, phase="Succeeded", containerStatuses=DONE)
        await b.api.break_watches()
        await b.clock.sleep(20)
        assert 3 <= b.api.counts["WATCH"] < 40, "a few calls, not thousands"
        assert await b.is_over(handle), "a list tells what the watch does not"
        b.api.faults.clear()
        other = await b.begun(f"{RUN}.2")
        await b.api.change(other.name, phase="Succeeded", containerStatuses=DONE)
        await b.seen(other.name)
        assert await b.is_over(other)


async def test_k03_a_watch_resumes_from_the_version_of_the_list(tmp_path: Path) -> None:
    clock = ScaledClock()
    api = FakeApiServer(clock)
    for number in range(5):
        pod = run_pod(session(f"{RUN}.{number}"), _PROFILE, Surroundings())
        pod["metadata"]["namespace"] = "runs"
        api.add(pod)
    async with bench(tmp_path, api=api) as b:
        await b.until(lambda: b.api.counts["WATCH"] == 1)
        assert [a.query["resourceVersion"] for a in b.api.requests if a.verb == "WATCH"] == [
            str(b.api.version)
        ]
        name = name_of(f"{RUN}.4")
        old = copy.deepcopy(b.api.pods[name])
        await b.api.run(name)
        await b.api.change(name, phase="Succeeded", containerStatuses=DONE)
        await b.seen(name)
        before = b.version_of(name)
        await b.api.say(event_line("MODIFIED", old), event_line("ADDED", old))
        await b.api.run(name_of(f"{RUN}.3"))
        await b.seen(name_of(f"{RUN}.3"))
        assert b.version_of(name) == before, "what is replayed changes nothing"


async def test_k08_a_character_may_be_cut_in_two(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        handle = await b.begun()
        pod = copy.deepcopy(b.api.pods[handle.name])
        pod["metadata"]["resourceVersion"] = str(b.api.version + 1)
        pod["metadata"]["annotations"]["note"] = "…" * 100
        pod["status"] |= {"phase": "Failed", "reason": "Evicted", "message": "a – node"}
        line = event_line("MODIFIED", pod)
        cut = line.index("…".encode()) + 1
        await b.api.say(line[:cut], line[cut : cut + 1], line[cut + 1 :])
        await b.until(lambda: b.version_of(handle.name) == pod["metadata"]["resourceVersion"])
        outcome = await b.sandbox.outcome(handle)
        assert (outcome.failure, outcome.detail) == (FailureKind.NODE_PRESSURE, "a – node")
        assert b.sandbox.watch.lists == 1


async def test_k11_a_token_that_rotates_fails_no_request(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.api.tokens = {"one"}
        first = await b.begun()
        (tmp_path / "token").write_text("two\n")
        b.api.tokens = {"two"}
        await b.api.break_watches()
        second = await b.begun(f"{RUN}.2")
        await b.sandbox.remove(first)
        await b.api.change(second.name, phase="Succeeded", containerStatuses=DONE)
        await b.seen(second.name)
        assert await b.is_over(second)


async def test_k11_a_token_that_stays_wrong_is_an_error_at_once(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.api.tokens = {"another"}
        before = b.api.counts["POST"]
        with pytest.raises(SandboxError, match="401"):
            await b.sandbox.start(session())
        assert b.api.counts["POST"] - before == 2, "one silent retry"


@pytest.mark.parametrize(
    ("version", "fit"),
    [("36.0.0", False), ("36.0.1", True), ("36.4.0", True), ("37.0.0", False), ("35.0.0", False)],
)
def test_k12_only_libraries_that_say_who_we_are_are_used(version: str, fit: bool) -> None:
    assert is_fit(version) is fit


class _Mute(Access):
    """A library that forgets the token of a service account."""

    async def headers(self) -> dict[str, str]:
        return {}


async def test_k12_a_client_without_a_token_refuses_to_begin(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\n")
    (tmp_path / "ca.crt").write_text("no certificate, but a file")
    inside = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    good = Access(_PROFILE, inside, service_account=tmp_path)
    await good.renew()
    await good.check()
    assert await good.headers() == {"authorization": "bearer one"}
    mute = _Mute(_PROFILE, inside, service_account=tmp_path)
    await mute.renew()
    with pytest.raises(UserError, match="would send no token"):
        await mute.check()


async def test_k12_a_server_that_lets_us_not_in_is_no_server(tmp_path: Path) -> None:
    api = FakeApiServer(ScaledClock())
    api.tokens = {"another"}
    with pytest.raises(UserError, match="the cluster cannot be used: the API server says 401"):
        async with bench(tmp_path, api=api):
            pass


async def test_k13_sessions_leave_no_threads_and_descriptors(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:

        async def rounds(first: int, count: int) -> tuple[int, int]:
            for number in range(first, first + count):
                handle = await b.begun(f"{RUN}.{number}")
                await b.sandbox.remove(handle)
                await b.api.break_watches()
            return threading.active_count(), len(os.listdir("/proc/self/fd"))

        threads, files = await rounds(1, 5)
        more_threads, more_files = await rounds(100, 15)
        assert more_threads <= threads + 2
        assert more_files <= files + 4


async def test_k14_many_fat_pods_are_listed_in_pages_and_kept_lean(tmp_path: Path) -> None:
    api = FakeApiServer(ScaledClock())
    for number in range(1200):
        pod = run_pod(session(f"{RUN}.{number}"), _PROFILE, Surroundings())
        pod["metadata"]["annotations"]["fat"] = "x" * 5000
        api.add(pod)
    async with bench(tmp_path, api=api) as b:
        assert len(await b.sandbox.sessions()) == 1200
        assert [a.query.get("limit") for a in b.api.requests if a.path.endswith("/pods")][:3] == [
            "500"
        ] * 3
        view = b.sandbox.watch.cache.named(name_of(f"{RUN}.7"))
        assert len(repr(view)) < 1000


async def test_k15_every_verb_waits_as_it_is_told(tmp_path: Path) -> None:
    def slow_down() -> web.Response:
        return status(429, "TooManyRequests", headers={"Retry-After": "2"})

    async with bench(tmp_path) as b:
        for verb in ("POST", "GET", "DELETE"):
            b.api.faults.append(failing(verb, slow_down, every=3))
        began = b.clock.now()
        handles = await asyncio.gather(*(b.begun(f"{RUN}.{n}") for n in range(9)))
        for handle in handles:
            await b.sandbox.remove(handle)
        assert b.clock.now() - began >= 2.0
        assert b.api.pods == {}
        assert b.api.counts["POST"] <= 18
        assert b.api.counts["DELETE"] <= 18


async def test_k15_a_watch_waits_as_it_is_told(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        slow = status(429, "TooManyRequests", headers={"Retry-After": "20"})
        b.api.faults.append(failing("WATCH", lambda: slow, times=1))
        before = b.api.counts["WATCH"]
        await b.api.break_watches()
        await b.clock.sleep(15)
        assert b.api.counts["WATCH"] == before + 1
        await b.until(lambda: b.sandbox.watch.lists == 2)


async def test_k16_counts_of_a_quota_are_no_stranger(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        conflict = "Operation cannot be fulfilled on resourcequotas"
        b.api.faults.append(failing("POST", lambda: status(409, "Conflict", conflict), every=2))
        handles = await asyncio.gather(*(b.begun(f"{RUN}.{n}") for n in range(10)))
        assert len({handle.uid for handle in handles}) == len(b.api.pods) == 10


async def test_k16_a_full_quota_is_waited_for_like_a_full_cluster(tmp_path: Path) -> None:
    full = "pods is forbidden: exceeded quota: runs, requested: pods=1, used: pods=9"
    async with bench(tmp_path, factor=500) as b:
        b.api.faults.append(failing("POST", lambda: status(403, "Forbidden", full), times=3))
        await b.begun()
        b.api.faults[:] = [failing("POST", lambda: status(403, "Forbidden", full))]
        with pytest.raises(SandboxError) as caught:
            await b.sandbox.start(session(f"{RUN}.2"))
        assert caught.value.kind is FailureKind.UNSCHEDULABLE


async def test_k17_a_create_without_an_answer_is_adopted(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:

        async def stored_but_late(request: web.Request) -> web.StreamResponse | None:
            if request.method != "POST" or b.api.pods:
                return None
            await b.api._create(request)
            return status(504, "Timeout")

        b.api.faults.append(stored_but_late)
        handle = await b.begun()
        assert len(b.api.pods) == 1
        assert handle.uid == b.api.pods[handle.name]["metadata"]["uid"]
        again = await b.sandbox.start(session())
        assert again == handle


@pytest.mark.parametrize(
    "label", ["fde-ray/managed", "fde-ray/run", "fde-ray/attempt", "fde-ray/role", "fde-ray/spec"]
)
async def test_k17_a_stranger_of_the_same_name_is_refused_and_left(
    tmp_path: Path, label: str
) -> None:
    async with bench(tmp_path) as b:
        stranger = b.built()
        stranger["metadata"]["labels"][label] = "other"
        b.api.add(stranger)
        with pytest.raises(SandboxError, match=f"another {label.removeprefix(PREFIX)}:"):
            await b.sandbox.start(session())
        assert list(b.api.pods) == [name_of()]
        assert b.api.counts["DELETE"] == 0


async def test_k18_a_pod_of_an_earlier_attempt_is_no_pod_of_this_one(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        first = await b.begun(f"{RUN}.1")
        await b.api.change(
            first.name, phase="Failed", reason="Evicted", message="The node was low on memory"
        )
        second = await b.begun(f"{RUN}.2")
        assert second.uid != first.uid
        assert await b.sandbox.state(second) == "running"
        await b.sandbox.stop(first)
        await b.sandbox.remove(first)
        assert list(b.api.pods) == [second.name]


async def test_k19_a_node_that_is_gone_frees_its_runs_after_a_bound(tmp_path: Path) -> None:
    async with bench(tmp_path, factor=200) as b:
        b.api.kubelet_ends_pods = False
        handle = await b.begun()
        await b.api.mark_deleted(handle.name, grace_s=60)
        await b.seen(handle.name)
        assert not await b.is_over(handle), "its grace is its own"
        await b.clock.sleep(95)
        assert await b.is_over(handle)
        assert await b.failure(handle) is FailureKind.NODE_LOST
        await b.sandbox.stop(handle)
        await b.sandbox.remove(handle)
        assert b.api.pods == {}, "its record goes, although nobody confirms its end"


async def test_k20_an_image_that_cannot_be_pulled_piles_nothing_up(tmp_path: Path) -> None:
    most = 0
    async with bench(tmp_path, factor=500, start_within="30s") as b:

        async def cannot_pull(name: str) -> None:
            nonlocal most
            most = max(most, len(b.api.pods))
            waits = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
            both = [container(one, waiting=waits) for one in ("shim", "agent")]
            await b.api.change(name, node="n1", containerStatuses=both)

        b.api.on_create = cannot_pull
        for attempt in range(1, 4):
            with pytest.raises(SandboxError, match="Back-off") as caught:
                await b.sandbox.start(session(f"{RUN}.{attempt}"))
            assert caught.value.kind is FailureKind.IMAGE_PULL
            assert b.api.pods == {}
        assert most == 1


async def test_k21_a_cluster_that_grows_is_waited_for(tmp_path: Path) -> None:
    nowhere = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available",
    }
    async with bench(tmp_path, factor=1000) as b:

        async def is_unschedulable(name: str) -> None:
            await b.api.change(name, conditions=[nowhere])

        b.api.on_create = is_unschedulable
        starting = asyncio.create_task(b.sandbox.start(session(f"{RUN}.1")))
        await b.clock.sleep(45)
        assert not starting.done()
        await b.api.run(name_of(f"{RUN}.1"), conditions=[])
        assert (await starting).name == name_of(f"{RUN}.1")
        began = b.clock.now()
        with pytest.raises(SandboxError, match="0/3 nodes") as caught:
            await b.sandbox.start(session(f"{RUN}.2"))
        assert caught.value.kind is FailureKind.UNSCHEDULABLE
        assert 900 <= b.clock.now() - began < 1200
        assert list(b.api.pods) == [name_of(f"{RUN}.1")]


async def test_k22_a_pod_that_its_node_refuses_is_infra(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:

        async def is_rejected(name: str) -> None:
            await b.api.change(
                name, node="n1", phase="Failed", reason="OutOfmemory", containerStatuses=None
            )

        b.api.on_create = is_rejected
        with pytest.raises(SandboxError, match="OutOfmemory") as caught:
            await b.sandbox.start(session())
        assert caught.value.kind is FailureKind.NODE_REJECTED
        assert caught.value.rule.retried


async def test_k23_a_pod_that_vanishes_before_its_start_is_made_again(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        tries = 0

        async def vanishes_once(name: str) -> None:
            nonlocal tries
            tries += 1
            await (b.api.vanish(name) if tries == 1 else b.api.run(name))

        b.api.on_create = vanishes_once
        handle = await b.sandbox.start(session())
        assert tries == 2
        labels = b.api.pods[handle.name]["metadata"]["labels"]
        assert labels["fde-ray/attempt"] == "1", "the same attempt"


async def test_k23_a_pod_that_vanishes_after_its_start_is_a_lost_attempt(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        handle = await b.begun()
        await b.api.vanish(handle.name)
        await b.unseen(handle.name)
        assert await b.is_over(handle)
        assert await b.sandbox.state(handle) == "lost"
        assert await b.failure(handle) is FailureKind.POD_LOST
        assert b.api.counts["POST"] == 1, "no other pod takes its place by itself"


@pytest.mark.parametrize("code", [0, 1, 128, 137])
async def test_k24_out_of_memory_is_the_agents_whatever_the_exit_code(
    tmp_path: Path, code: int
) -> None:
    async with bench(tmp_path) as b:
        handle = await b.begun()
        both = [container("shim", running={}), ended("agent", code, "OOMKilled")]
        await b.api.change(handle.name, containerStatuses=both)
        found = await b.sandbox.agent_end(handle)
        assert found is not None
        assert found.failure is FailureKind.AGENT_RESOURCE
        assert not await b.is_over(handle), "its shim lives and collects"


def test_k25_no_agent_starts_while_what_is_forbidden_can_still_be_reached() -> None:
    """The gate of a pod's shim, which shares the agent's network, on a clock of its own."""
    now, tried = 0.0, []

    def reachable(addresses: Sequence[str]) -> Sequence[str]:
        tried.append(now)
        return addresses if now < 8.0 else ()

    def pause(seconds: float) -> bool:
        nonlocal now
        now += seconds
        return False

    site = GateSite(("10.96.0.1:443", "169.254.169.254:80"))
    gate = Gate(site, lambda: True, reachable=reachable, monotonic=lambda: now)
    told = gate.open(pause)
    assert told["opened"] == ["10.96.0.1:443", "169.254.169.254:80"]
    assert told["seconds"] >= 8.0 + site.over_s
    assert tried[-3] >= 8.0, "three rounds in a row were closed"
    open_for_ever = Gate(site, lambda: True, reachable=lambda a: a, monotonic=lambda: now)
    with pytest.raises(NotStarted, match=r"isolation: .* can be reached"):
        open_for_ever.open(pause)


def test_k27_pods_hold_no_credentials_and_may_not_fetch_any() -> None:
    pod = run_pod(session(), _PROFILE, Surroundings(("10.96.0.1:443",)))
    spec = pod["spec"]
    assert spec["automountServiceAccountToken"] is False
    shim, agent = spec["containers"]
    assert "env" not in agent
    assert [one["name"] for one in shim["env"]] == ["FDE_SHIM_CONFIG"]
    config = json.loads(shim["env"][0]["value"])
    assert {"10.96.0.1:443", "169.254.169.254:80"} <= set(config["pod"]["gate"]["forbidden"])
    rest = json.dumps(pod).replace(json.dumps(shim["env"][0]["value"]), "")
    assert session().secret not in rest


async def test_k28_long_runs_ask_to_be_left_alone_and_losses_are_infra(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        handle = await b.begun()
        notes = b.api.pods[handle.name]["metadata"]["annotations"]
        assert notes["karpenter.sh/do-not-disrupt"] == "true"
        assert notes["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
        evicted = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        }
        await b.api.change(handle.name, conditions=[evicted])
        await b.api.vanish(handle.name)
        await b.unseen(handle.name)
        kind = await b.failure(handle)
        assert kind is FailureKind.NODE_DRAINED
        assert FAILURES[kind].retried
        assert not FAILURES[kind].graded


async def test_k30_pods_look_up_no_names(tmp_path: Path) -> None:
    spec = run_pod(session(), _PROFILE, Surroundings())["spec"]
    assert (spec["dnsPolicy"], spec["dnsConfig"]) == ("None", {"nameservers": ["127.0.0.1"]})
    async with bench(tmp_path) as b:
        with pytest.raises(SandboxError, match="look up no names"):
            await b.sandbox.start(session(plane_socket="http://gateway.fde-ray:8080"))
        assert b.api.counts["POST"] == 0


def test_what_is_kept_of_a_pod_survives_anything() -> None:
    for odd in (None, 3, [], {}, {"metadata": None}, {"metadata": {"name": "x"}}):
        with pytest.raises(ValueError, match="no pod"):
            pod_view(odd)


_PROFILE = KubernetesProfile(namespace="runs", image="fde-ray/agent:test", pull="Never")
