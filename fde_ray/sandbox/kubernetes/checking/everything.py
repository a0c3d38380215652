"""What of a cluster is fit for runs, and what to do about the rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

from fde_ray.model.errors import SandboxError
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.sandbox.kubernetes.faults import ApiFault
from fde_ray.sandbox.kubernetes.fence.reserve import Grading

from .calling import Api
from .checks import Check
from .clocks import clock_checks
from .inventory import (
    RENDER,
    admission_check,
    limits_check,
    namespace_check,
    owner_check,
    policies_check,
    priorities_check,
    runtime_check,
    versions_check,
)
from .isolation import Target, judged, looked_around
from .permissions import rights_checks
from .reserve import reserve_check

Look = Callable[[Api, KubernetesProfile], Awaitable[Check]]

_STILL: dict[str, Look] = {
    "versions": versions_check,
    "namespace": namespace_check,
    "runtime class": runtime_check,
    "priority classes": priorities_check,
    "network policies": policies_check,
    "admission": admission_check,
    "quota": limits_check,
    "owner": owner_check,
}


async def cluster_checks(
    api: Api, target: Target, grading: Grading, clock: Callable[[], float] = time.time
) -> tuple[Check, ...]:
    """Return every check in the order in which a person mends what failed."""
    profile = target.profile
    looks = _STILL | {"reserve": partial(reserve_check, grading=grading)}
    still = asyncio.gather(*(_looked(what, look, api, profile) for what, look in looks.items()))
    seen, standing, rights = await asyncio.gather(
        looked_around(api, target, clock), still, _rights(api, profile)
    )
    reports = [report for report in seen.values() if not isinstance(report, str)]
    return (
        *standing,
        *rights,
        _image(profile, bool(reports)),
        *judged(seen, target),
        *clock_checks(reports),
    )


async def _looked(what: str, look: Look, api: Api, profile: KubernetesProfile) -> Check:
    try:
        return await look(api, profile)
    except ApiFault as fault:
        if fault.is_absence:
            return Check(what, False, "not there", RENDER)
        return Check(what, False, fault.detail, "see whether this identity may read it")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        return Check(what, False, f"the server's answer makes no sense: {error!r}", "look at it")


async def _rights(api: Api, profile: KubernetesProfile) -> tuple[Check, ...]:
    try:
        return await rights_checks(api, profile.namespace)
    except SandboxError as error:
        return (Check("rights", False, error.detail, "see whether this identity is known"),)


def _image(profile: KubernetesProfile, ran: bool) -> Check:
    if ran:
        return Check("image", True, f"{profile.image} runs, with the programs of this project")
    remedy = "build it with sandbox_images/, push it where nodes can pull it, and name its digest"
    return Check("image", False, f"no canary came back from {profile.image}", remedy)
