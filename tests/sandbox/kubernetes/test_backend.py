"""What the sandbox answers from its one watch, and what it does when the server is unkind."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from fde_ray.model.errors import SandboxError, UserError
from fde_ray.model.failures import FailureKind
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.model.profile import SandboxProfile
from fde_ray.sandbox.kubernetes.backend import opened_kubernetes
from fde_ray.sandbox.kubernetes.checking.canaries import decoy
from fde_ray.sandbox.kubernetes.pods import Surroundings, run_pod
from fde_ray.sandbox.kubernetes.scoring import ScoringOnly, scorer_of
from fde_ray.sandbox.local import LocalSandbox
from fde_ray.sandbox.records import (
    Completed,
    Handle,
    Once,
    PodHandle,
    ProcessHandle,
    handle_from,
)
from tests.sandbox.kubernetes.fake_api_server import (
    FakeApiServer,
    ScaledClock,
    ended,
    event_line,
    failing,
    stamp,
    status,
)
from tests.sandbox.kubernetes.stage import RUN, bench, name_of, session

DONE = [ended("shim", message=json.dumps({"phase": "ended", "detail": "well"})), ended("agent")]
ONCE = Once(argv=("true",))


def test_rows_keep_handles_of_both_kinds() -> None:
    old = {"subject": "r.1", "pid": 7, "start_time": 9, "dir": "/x"}
    pod = PodHandle(subject="r.1", namespace="n", name="p", uid="u")
    assert handle_from(old) == ProcessHandle(subject="r.1", pid=7, start_time=9, dir="/x")
    assert handle_from(json.loads(json.dumps(pod.jsonable()))) == pod
    for odd in (None, {}, {"subject": "r.1"}, old | {"uid": "u"}, "text", 3):
        with pytest.raises(ValueError, match="validation error"):
            handle_from(odd)


async def test_each_kind_of_sandbox_leaves_the_sessions_of_the_other_alone(tmp_path: Path) -> None:
    process = ProcessHandle(subject="r.1", pid=1, start_time=1, dir="/x")
    pod = PodHandle(subject="r.1", namespace="n", name="p", uid="u")
    local = LocalSandbox(tmp_path / "home", SandboxProfile())
    assert await local.over([pod]) == frozenset()
    async with bench(tmp_path) as b:
        assert await b.sandbox.over([process]) == frozenset()
        for sandbox, handle in ((local, pod), (b.sandbox, process)):
            for ask in (sandbox.state, sandbox.outcome, sandbox.stop, sandbox.remove):
                with pytest.raises(SandboxError, match=r"r\.1"):
                    await ask(handle)


async def test_a_session_is_told_by_its_shim_and_gone_after_its_removal(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        handle = await b.begun()
        assert b.sandbox.handle_of(handle.subject) == handle
        assert await b.sandbox.sessions() == [handle]
        assert await b.sandbox.state(handle) == "running"
        assert await b.sandbox.agent_end(handle) is None
        await b.api.change(handle.name, phase="Succeeded", containerStatuses=DONE)
        await b.seen(handle.name)
        assert await b.sandbox.state(handle) == "ended"
        outcome = await b.sandbox.outcome(handle)
        assert (outcome.phase, outcome.failure, outcome.detail) == ("ended", None, "well")
        await b.sandbox.stop(handle)
        await b.sandbox.remove(handle)
        assert b.api.pods == {}
        assert b.sandbox.handle_of(handle.subject) is None
        assert b.api.counts["DELETE"] == 1, "one request ends it and clears it away"
        await b.sandbox.stop(handle)
        await b.sandbox.remove(handle)
        assert b.api.counts["DELETE"] == 1


async def test_pods_are_counted_by_their_runs_when_they_are_made(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        for subject in (f"{RUN}.1", f"{RUN}.1", f"{RUN}.2", f"{'cd' * 16}.1"):
            await b.begun(subject)
        assert b.sandbox.pods_created == {RUN: 2, "cd" * 16: 1}


async def test_a_quiet_run_costs_two_requests(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.until(lambda: b.api.counts["WATCH"] == 1)
        before = len(b.api.requests)
        handle = await b.begun()
        for _ in range(50):
            await b.sandbox.over([handle])
            await b.sandbox.state(handle)
        await b.sandbox.stop(handle)
        await b.sandbox.remove(handle)
        assert [asked.verb for asked in b.api.requests[before:]] == ["POST", "DELETE"]


async def test_a_pod_of_the_same_name_is_not_deleted_for_another(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        handle = await b.begun()
        await b.api.vanish(handle.name)
        await b.unseen(handle.name)
        again = await b.begun()
        assert (again.name, again.uid != handle.uid) == (handle.name, True)
        assert await b.is_over(handle)
        assert await b.failure(handle) is FailureKind.POD_REPLACED
        await b.sandbox.stop(handle)
        await b.sandbox.remove(handle)
        assert list(b.api.pods) == [again.name]
        assert await b.sandbox.state(again) == "running"


async def test_a_pod_that_is_being_deleted_and_never_began_makes_way(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        pod = b.built()
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        b.api.add(pod)
        b.api.on_create = b.api.run
        handle = await b.sandbox.start(session())
        assert handle.uid != pod["metadata"]["uid"]


async def test_a_pod_that_has_ended_is_taken_over_and_not_made_again(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        handle = await b.begun()
        await b.api.change(handle.name, phase="Succeeded", containerStatuses=DONE)
        await b.seen(handle.name)
        assert await b.sandbox.start(session()) == handle
        assert b.api.counts["POST"] == 1


async def test_a_server_that_stays_away_ends_a_start(tmp_path: Path) -> None:
    async with bench(tmp_path, factor=200, schedule_within="1m") as b:
        b.api.faults.append(failing("POST", lambda: status(503, "ServiceUnavailable")))
        with pytest.raises(SandboxError, match="503") as caught:
            await b.sandbox.start(session())
        assert caught.value.kind is FailureKind.SANDBOX_START


async def test_sessions_go_on_while_the_server_is_away(tmp_path: Path) -> None:
    async with bench(tmp_path, factor=100) as b:
        handle = await b.begun()
        b.api.faults.append(failing("*", lambda: status(503, "ServiceUnavailable")))
        await b.api.break_watches()
        b.api.change_silently(handle.name, phase="Succeeded", containerStatuses=DONE)
        b.api.on_create = b.api.run
        starting = asyncio.create_task(b.sandbox.start(session(f"{RUN}.2")))
        await b.clock.sleep(120)
        assert not await b.is_over(handle), "nobody has seen it end"
        assert not starting.done(), "no attempt is lost for it"
        b.api.faults.clear()
        await starting
        await b.until(lambda: b.version_of(handle.name) is not None)
        await b.seen(handle.name)
        assert await b.is_over(handle)


@pytest.mark.parametrize(
    "garbage",
    [b"no json\n", b"[1, 2]\n", b"\xff\xfe\n", b'{"type": "ADDED"}\n', b'{"type": "ADDED", "obj'],
    ids=["text", "a list", "no text", "no object", "cut off"],
)
async def test_garbage_in_a_watch_is_answered_by_a_list(tmp_path: Path, garbage: bytes) -> None:
    async with bench(tmp_path) as b:
        handle = await b.begun()
        b.api.change_silently(handle.name, phase="Succeeded", containerStatuses=DONE)
        await b.api.say(garbage)
        b.api.forget()
        await b.api.break_watches()
        await b.until(lambda: b.sandbox.watch.lists >= 2)
        assert await b.is_over(handle)


async def test_a_pod_that_is_none_harms_nobody(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        handle = await b.begun()
        for odd in ({}, {"metadata": {}}, {"metadata": {"name": 3, "uid": []}, "status": []}):
            await b.api.say(event_line("MODIFIED", odd))
        await b.api.change(handle.name, phase="Succeeded", containerStatuses=DONE)
        await b.seen(handle.name)
        assert await b.is_over(handle)
        assert b.sandbox.watch.lists == 1


async def test_a_page_that_is_too_old_begins_the_list_again(tmp_path: Path) -> None:
    api = FakeApiServer(ScaledClock())
    for number in range(600):
        api.add(run_pod(session(f"{RUN}.{number}"), PROFILE, Surroundings()))
    expired = 0

    async def expires_once(request: web.Request) -> web.StreamResponse | None:
        nonlocal expired
        if "continue" not in request.query or expired:
            return None
        expired += 1
        return status(410, "Expired")

    api.faults.append(expires_once)
    async with bench(tmp_path, api=api) as b:
        assert len(await b.sandbox.sessions()) == 600
        assert expired == 1


async def test_shards_that_are_not_watched_are_not_judged(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        mine = await b.begun("01" * 16 + ".1")
        theirs = await b.begun("02" * 16 + ".1")
        await b.sandbox.watch_shards({1})
        assert await b.sandbox.sessions() == [mine]
        await b.api.vanish(theirs.name)
        assert await b.sandbox.over([mine, theirs]) == frozenset()
        assert await b.sandbox.state(theirs) == "lost", "asked for by its name"
        await b.sandbox.watch_shards({1, 2})
        assert await b.sandbox.over([mine, theirs]) == {theirs.subject}
        await b.sandbox.watch_shards(set())
        assert await b.sandbox.sessions() == []
        await b.sandbox.watch_shards({1})
        assert await b.sandbox.sessions() == [mine], "a pod that was out of sight comes back"


async def test_shards_that_cannot_be_told_are_tried_again(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        mine = await b.begun("01" * 16 + ".1")
        b.api.faults.append(failing("GET", lambda: status(403, "Forbidden", "no list for you")))
        with pytest.raises(SandboxError, match="no list for you"):
            await b.sandbox.watch_shards({1})
        assert await b.sandbox.over([mine]) == frozenset()
        b.api.faults.clear()
        await b.until(lambda: b.sandbox.watch.cache.covers(1))
        assert await b.sandbox.sessions() == [mine]


async def test_what_is_new_is_no_orphan(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        old, kept = await b.begun(f"{RUN}.1"), await b.begun(f"{RUN}.2")
        await b.clock.sleep(60)
        new = await b.begun(f"{RUN}.3")

        async def keeps() -> set[str]:
            return {kept.subject}

        assert await b.sandbox.sweep(keeps, 30) == [old.subject]
        assert sorted(b.api.pods) == sorted([kept.name, new.name])


async def test_canaries_of_those_who_looked_and_died_are_cleared_away(tmp_path: Path) -> None:
    async def keeps_all() -> set[str]:
        return {f"{RUN}.1"}

    async with bench(tmp_path) as b:
        handle = await b.begun()
        for name, age_s in (("old", 1000), ("young", 10)):
            canary = decoy(name, b.sandbox._profile)
            canary["metadata"]["creationTimestamp"] = stamp(b.clock.now() - age_s)
            canary["status"] = {"phase": "Failed", "reason": "DeadlineExceeded"}
            b.api.add(canary)
        assert await b.sandbox.sweep(keeps_all, 600) == []
        assert set(b.api.pods) == {handle.name, "young"}


@pytest.mark.parametrize(
    ("code", "reason", "message"),
    [(403, "Forbidden", "pods is forbidden"), (404, "NotFound", "no such namespace")],
)
async def test_a_namespace_that_cannot_be_seen_is_told_at_once(
    tmp_path: Path, code: int, reason: str, message: str
) -> None:
    api = FakeApiServer(ScaledClock())

    async def refuses(request: web.Request) -> web.StreamResponse | None:
        return status(code, reason, message) if request.path.endswith("/pods") else None

    api.faults.append(refuses)
    with pytest.raises(UserError, match=f"namespace runs is of no use: .*{message}"):
        async with bench(tmp_path, api=api):
            pass


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "no cluster is named: set KUBECONFIG"),
        ({"KUBECONFIG": "/nowhere/config"}, "there is no kubeconfig at /nowhere/config"),
        ({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, "cannot use /var/run/secrets"),
    ],
)
async def test_a_cluster_that_is_not_named_is_asked_for(environ: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        async with opened_kubernetes(PROFILE, environ, ScaledClock()):
            pass


def kubeconfig_of(server: str | None) -> str:
    return json.dumps(
        {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "lab", "user": "u"}}],
            "clusters": [{"name": "lab", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is no kubeconfig"),
        ("- a list", "it is no kubeconfig"),
        ("just words", "it is no kubeconfig"),
        ("clusters: 3", "it is no kubeconfig"),
        (kubeconfig_of("ftp:zz"), r"clusters\[lab\].cluster.server is 'ftp:zz'; write https://"),
        (kubeconfig_of(""), r"clusters\[lab\].cluster.server is ''; write https://"),
        (kubeconfig_of(None), "Expected key server"),
        (kubeconfig_of("https://:6443"), "cluster.server is 'https://:6443'"),
        (kubeconfig_of("https://10.0.0.1:x"), "cluster.server is 'https://10.0.0.1:x'"),
        (kubeconfig_of("https://[zz:1"), "cluster.server is "),
        (kubeconfig_of("https://10.0.0.1\n:6443"), "cluster.server is "),
        (kubeconfig_of("x" * 10**6), "cluster.server is 'xxx"),
        ("{", "while parsing"),
        ("\x00", "special characters"),
    ],
)
async def test_a_kubeconfig_may_be_anything(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(UserError, match=f"cannot use {path}: .*{said}") as caught:
        async with opened_kubernetes(PROFILE, {"KUBECONFIG": str(path)}, ScaledClock()):
            pass
    assert len(str(caught.value)) < 500


async def test_a_cluster_without_a_server_is_no_local_one(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(kubeconfig_of(None).replace('"server": null', ""))
    with pytest.raises(UserError, match=r"cluster\.server is ''"):
        async with opened_kubernetes(PROFILE, {"KUBECONFIG": str(path)}, ScaledClock()):
            pass


@pytest.mark.parametrize("key", ["KUBECONFIG", "sandbox.kubernetes.kubeconfig"])
async def test_a_folder_is_no_kubeconfig(tmp_path: Path, key: str) -> None:
    is_of_profile = key != "KUBECONFIG"
    profile = PROFILE.evolve(kubeconfig=str(tmp_path)) if is_of_profile else PROFILE
    environ = {} if is_of_profile else {"KUBECONFIG": f"/nowhere:{tmp_path}"}
    with pytest.raises(UserError, match=f"{key} names {tmp_path}, which is a folder"):
        async with opened_kubernetes(profile, environ, ScaledClock()):
            pass


class _Here:
    def __init__(self, said: bytes = b"here") -> None:
        self._said = said

    async def run_once(self, once: Once) -> Completed:
        return Completed(0, self._said, b"", "exit")


async def test_evaluators_are_refused_unless_they_may_run_here(tmp_path: Path) -> None:
    refusing = scorer_of(PROFILE.evolve(scoring="refuse"), _Here(), _Here(b"pods"))
    with pytest.raises(SandboxError, match="scoring to pods, or to local"):
        await refusing.run_once(ONCE)
    for scoring, said in (("local", b"here"), ("pods", b"pods")):
        scorer = scorer_of(PROFILE.evolve(scoring=scoring), _Here(), _Here(b"pods"))
        assert (await scorer.run_once(ONCE)).stdout == said
        its = replace(ONCE, untrusted=True)
        assert (await scorer.run_once(its)).stdout == b"pods", "never where sessions are driven"
    async with bench(tmp_path) as b:
        with pytest.raises(SandboxError, match="scoring to pods, or to local"):
            await b.sandbox.run_once(ONCE)


async def test_a_process_that_drives_nothing_needs_no_cluster() -> None:
    sandbox = ScoringOnly(_Here())
    handle: Handle = PodHandle(subject="r.1", namespace="n", name="p", uid="u")
    assert (await sandbox.run_once(ONCE)).stdout == b"here"
    assert sandbox.handle_of("r.1") is None
    assert await sandbox.over([handle]) == frozenset()
    for ask in (sandbox.state, sandbox.outcome, sandbox.stop, sandbox.remove):
        with pytest.raises(SandboxError, match="drives no sessions"):
            await ask(handle)
    with pytest.raises(SandboxError, match="drives no sessions"):
        await sandbox.start(session())
    with pytest.raises(SandboxError, match="drives no sessions"):
        await sandbox.probe()


async def test_a_driver_that_is_stopped_leaves_its_pods(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        starting = asyncio.create_task(b.sandbox.start(session()))
        await b.until(lambda: bool(b.api.pods))
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert list(b.api.pods) == [name_of()]
        await b.api.run(name_of())
        handle = await b.sandbox.start(session())
        assert handle.uid == b.api.pods[name_of()]["metadata"]["uid"]


PROFILE = KubernetesProfile(namespace="runs", image="fde-ray/agent:test", pull="Never")
