"""`fde-ray doctor`: what works on this machine, and what to do about the rest."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

import typer

from .setting import JsonOption, ProfileOption

if TYPE_CHECKING:
    from fde_ray.model.profile import Profile


_LITELLM = "litellm's own address"


class Finding(NamedTuple):
    what: str
    ok: bool
    detail: str


def doctor(profile: ProfileOption = None, json_: JsonOption = False) -> None:
    """Say what works on this machine, and what to do about the rest.

    Looks at Python, the sandbox, the state folder, the run store, the object store (by writing and
    removing an object) and the cases, and whether each model endpoint has its key and can be
    connected to; calls no model.

    Example: fde-ray doctor
    """
    from .output import emit_json, safe, say
    from .setting import profile_from, wait_for

    found = wait_for(_findings(profile_from(profile)))
    if json_:
        emit_json([finding._asdict() for finding in found])
    else:
        for finding in found:
            mark = "ok    " if finding.ok else "FAILS "
            say(f"{mark}{finding.what:<14} {safe(finding.detail)}")
    if not all(finding.ok for finding in found):
        raise typer.Exit(1)


async def _findings(profile: Profile) -> list[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    found = [Finding("python", sys.version_info >= (3, 11), python)]
    found.append(_state_folder(profile))
    found.append(await _store(profile))
    found.append(await _objects(profile))
    found.append(_cases(profile))
    found.append(await _sandbox(profile))
    return found + await _endpoints(profile)


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
