"""Whether the fence around run pods stands, as pods behind it see it. Fails closed.

Three canaries are started: a decoy that listens, and one lookout for each set of network rules. A
refusal counts because its target was alive: the kubelet reaches the decoy, each plane is reached by
the lookout of the other role.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from fde_ray.model.errors import SandboxError, UserError
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.model.planes import PlanesProfile
from fde_ray.sandbox.kubernetes import contract as c
from fde_ray.sandbox.kubernetes.credentials import is_ip
from fde_ray.sandbox.kubernetes.fence.network import TO_GRADE_PLANE, TO_RUN_PLANE

from .calling import Api
from .canaries import Sighting
from .checks import Check
from .lookouts import LOOK_S, Report, reports

METADATA = "169.254.169.254:80"
LOOKOUTS: dict[c.PodRole, str] = {c.SOLVE: TO_RUN_PLANE, "score": TO_GRADE_PLANE}
"""Role -> the network policy that it shows."""
_INSTALL = (
    "the cluster's network must enforce NetworkPolicy: install one that does (Calico, Cilium, "
    "kube-router, ...) and apply what `fde-ray cluster render` prints"
)


class Target(NamedTuple):
    """What canaries are to try. Addresses are `ip:port`."""

    profile: KubernetesProfile
    run_plane: tuple[str, ...]
    """The run-plane and where archives go."""
    grade_plane: tuple[str, ...]
    forbidden: tuple[str, ...] = ()
    """Addresses of the API server."""
    limit_s: float = LOOK_S
    """How long the fence may take to stand."""

    def wanted(self, role: c.PodRole) -> tuple[str, ...]:
        return self.run_plane if role == c.SOLVE else self.grade_plane

    def closed(self, role: c.PodRole) -> tuple[str, ...]:
        others = self.grade_plane if role == c.SOLVE else self.run_plane
        known = dict.fromkeys((*others, *self.forbidden, METADATA, *self.profile.forbidden))
        return tuple(address for address in known if address not in self.wanted(role))


def target_of(
    profile: KubernetesProfile, planes: PlanesProfile, forbidden: tuple[str, ...]
) -> Target:
    """Return what is to be tried; UserError when a plane has no address that pods can reach.

    forbidden: addresses of the API server.
    """
    run = tuple(pod_address("planes.ingest", at) for at in (planes.ingest,) if at is not None)
    run = tuple(dict.fromkeys((pod_address("planes.run", planes.run), *run)))
    return Target(profile, run, (pod_address("planes.grade", planes.grade),), forbidden)


def pod_address(key: str, address: str | None) -> str:
    """Return a plane's ip:port: pods resolve no names. key: what of the profile holds it."""
    found = urlsplit(address or "")
    if not is_ip(found.hostname or ""):
        raise UserError(
            f"{key} is {address or 'not set'}; pods reach planes by IP address alone: "
            "write http://ip:port"
        )
    return found.netloc


async def isolation_checks(
    api: Api, target: Target, clock: Callable[[], float] = time.time
) -> tuple[Check, ...]:
    """Return for each role whether its pods are fenced in and reach their planes."""
    return judged(await looked_around(api, target, clock), target)


async def looked_around(
    api: Api, target: Target, clock: Callable[[], float] = time.time
) -> Mapping[c.PodRole, Report | str]:
    """Return what the canary of each role told, or why it told nothing."""
    tasks = {role: (target.wanted(role), target.closed(role)) for role in LOOKOUTS}
    try:
        return await reports(api, target.profile, tasks, clock, limit_s=target.limit_s)
    except SandboxError as error:
        return dict.fromkeys(LOOKOUTS, error.detail)


def judged(seen: Mapping[c.PodRole, Report | str], target: Target) -> tuple[Check, ...]:
    checks = []
    for role, report in seen.items():
        if isinstance(report, str):
            checks.append(_unproven(role, report))
        else:
            checks += [_fence(role, report.seen), _planes(role, report.seen, target)]
    return tuple(checks)


def _unproven(role: c.PodRole, why: str) -> Check:
    remedy = "mend that first: no sweep starts before a canary has shown the fence"
    return Check(_fence_of(role), False, f"not proven: {why}", remedy, isolation=True)


def _fence(role: c.PodRole, seen: Sighting) -> Check:
    what = _fence_of(role)
    if seen.reached:
        leak = f"a {role} pod reached {', '.join(seen.reached)}"
        return Check(what, False, leak, _INSTALL, isolation=True)
    if seen.closed_after_s is None and seen.missing:
        unsure = "not proven: its planes were out of reach, so that a refusal shows nothing"
        return Check(what, False, unsure, f"mend planes ({role}) first", isolation=True)
    if seen.closed_after_s is None:
        unsure = f"not proven: a {role} pod found it closed only at times"
        return Check(what, False, unsure, _INSTALL, isolation=True)
    stood = f"all but its planes was closed after {seen.closed_after_s:g} s"
    return Check(what, True, stood, isolation=True)


def _planes(role: c.PodRole, seen: Sighting, target: Target) -> Check:
    what = f"planes ({role})"
    if not seen.missing:
        return Check(what, True, f"reached {', '.join(target.wanted(role))}")
    remedy = (
        "let `fde-ray serve` run there, and the network policy "
        f"{LOOKOUTS[role]} name that address: `fde-ray cluster render`"
    )
    return Check(what, False, f"a {role} pod did not reach {', '.join(seen.missing)}", remedy)


def _fence_of(role: c.PodRole) -> str:
    return f"fence ({role})"
