"""`fde-ray doctor`: what works on this machine, and what to do about the rest."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from .setting import JsonOption, ProfileOption

if TYPE_CHECKING:
    from fde_ray.model.kubernetes import KubernetesProfile
    from fde_ray.model.profile import Profile


_LITELLM = "litellm's own address"


class Finding(NamedTuple):
    what: str
    ok: bool
    detail: str
    remedy: str = ""


ClusterOption = Annotated[
    bool,
    typer.Option(
        "--cluster",
        help="Look at the profile's Kubernetes, too, with pods that are started for it.",
    ),
]


def doctor(
    profile: ProfileOption = None, cluster: ClusterOption = False, json_: JsonOption = False
) -> None:
    """Say what works on this machine, and what to do about the rest.

    Looks at Python, the sandbox, the state folder, the run store, the object store (by writing and
    removing an object) and the cases, and whether each model endpoint has its key and can be
    connected to; calls no model.

    With --cluster also at the fence of run pods, whether the reserve for grading holds as many
    grades as the profile has in work at once, the rights of this account, and the clocks; three
    small pods try out for half a minute what a run could reach. No sweep starts where they reach
    more than their planes.

    Examples:

      fde-ray doctor

      fde-ray doctor --cluster --profile profile.yaml --json
    """
    from .output import emit_json, note
    from .setting import profile_from, wait_for

    read = profile_from(profile)
    if cluster:
        note("looking at the cluster; its pods take half a minute ...")
    found = wait_for(_findings(read, cluster))
    if json_:
        emit_json([finding._asdict() for finding in found])
    else:
        _show(found)
    if not all(finding.ok for finding in found):
        raise typer.Exit(1)


def _show(found: list[Finding]) -> None:
    from .output import safe, say

    width = max(14, *(len(finding.what) for finding in found))
    for finding in found:
        mark = "ok    " if finding.ok else "FAILS "
        told = f"{finding.detail}; {finding.remedy}" if finding.remedy else finding.detail
        say(f"{mark}{finding.what:<{width}} {safe(told)}")


async def _findings(profile: Profile, cluster: bool) -> list[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    found = [Finding("python", sys.version_info >= (3, 11), python)]
    found.append(_state_folder(profile))
    found.append(await _store(profile))
    found.append(await _objects(profile))
    found.append(_cases(profile))
    found.append(await _sandbox(profile))
    found += await _endpoints(profile)
    return found + (await _cluster(profile) if cluster else [])


def _state_folder(profile: Profile) -> Finding:
    import os
    import shutil

    from fde_ray.engine.home import home_of
    from fde_ray.model.errors import UserError

    try:
        home = home_of(profile, os.environ)
    except UserError as error:
        return Finding("state folder", False, str(error))
    free = shutil.disk_usage(home.root).free / 2**30
    return Finding("state folder", free > 1, f"{home.root} ({free:.0f} GiB free)")


async def _store(profile: Profile) -> Finding:
    import os

    from fde_ray.engine.home import home_of
    from fde_ray.model.errors import FdeRayError
    from fde_ray.store.runs import StoreLocation
    from fde_ray.store.runs.checking import checked_store

    try:
        location = StoreLocation.chosen(profile.store, home_of(profile, os.environ).database)
        place = await checked_store(location)
    except FdeRayError as error:
        return Finding("run store", False, str(error))
    return Finding("run store", True, place)


async def _objects(profile: Profile) -> Finding:
    import os

    from fde_ray.engine.home import home_of
    from fde_ray.model.errors import FdeRayError
    from fde_ray.store.objects.opening import checked_objects

    try:
        folder = home_of(profile, os.environ).objects
        place = await checked_objects(profile.objects, folder, os.environ)
    except FdeRayError as error:
        return Finding("object store", False, str(error))
    return Finding("object store", True, place)


def _cases(profile: Profile) -> Finding:
    from fde_ray.engine.runtime import cases_of
    from fde_ray.model.errors import UserError

    try:
        cases = cases_of(profile)
    except UserError as error:
        return Finding("cases", False, str(error))
    where = profile.cases or "the project's own folder"
    return Finding("cases", bool(cases), ", ".join(cases) or f"none in {where}")


async def _sandbox(profile: Profile) -> Finding:
    import os

    from fde_ray.engine.home import home_of
    from fde_ray.model.errors import FdeRayError
    from fde_ray.sandbox.local import LocalSandbox

    pods = profile.sandbox.kubernetes
    if profile.sandbox.runtime == "kubernetes" and pods is not None:
        told = f"pods of namespace {pods.namespace}; --cluster looks at them"
        return Finding("sandbox", True, told)
    try:
        home = home_of(profile, os.environ)
        facts = await LocalSandbox(home.sandboxes, profile.sandbox).probe()
    except FdeRayError as error:
        return Finding("sandbox", False, str(error))
    return Finding("sandbox", True, f"{facts.runtime} {facts.version}, limits by {facts.limits}")


async def _endpoints(profile: Profile) -> list[Finding]:
    from .endpoints import faults

    return [
        Finding("endpoint", False, f"{endpoint.match}: {fault}")
        if fault
        else Finding("endpoint", True, f"{endpoint.match} -> {endpoint.base_url or _LITELLM}")
        for endpoint, fault in zip(profile.endpoints, await faults(profile), strict=True)
    ]


async def _cluster(profile: Profile) -> list[Finding]:
    from fde_ray.model.errors import FdeRayError, UserError

    pods = profile.sandbox.kubernetes
    if pods is None:
        raise UserError(
            "the profile names no cluster: give it a `kubernetes:` block below `sandbox:`"
        )
    try:
        return await _in_cluster(profile, pods)
    except FdeRayError as error:
        return [Finding("cluster", False, str(error))]


async def _in_cluster(profile: Profile, pods: KubernetesProfile) -> list[Finding]:
    import os

    from fde_ray.model.clock import SystemClock
    from fde_ray.sandbox.kubernetes.backend import forbidden_addresses
    from fde_ray.sandbox.kubernetes.checking import cluster_checks, target_of
    from fde_ray.sandbox.kubernetes.client import KubeClient

    from .gradings import grading_of_profile

    grading = grading_of_profile(profile, at_once=os.cpu_count() or 1)
    async with KubeClient.opened(pods, os.environ, SystemClock()) as client:
        await client.greet()
        target = target_of(pods, profile.planes, await forbidden_addresses(client))
        checks = await cluster_checks(client, target, grading)
    return [Finding(one.what, one.ok, one.detail, one.remedy) for one in checks]
