"""Opens the sandbox that a profile names: on this machine, or pods of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fde_ray.model.clock import Clock
from fde_ray.model.errors import UserError
from fde_ray.model.profile import Profile, SandboxProfile
from fde_ray.sandbox.interface import Sandbox
from fde_ray.sandbox.local import LocalSandbox

from .boxes import BoxScorer
from .home import Home


@asynccontextmanager
async def opened_sandbox(
    whole: Profile,
    home: Home,
    clock: Clock,
    environ: Mapping[str, str],
    *,
    boxes: BoxScorer,
    unsafe: bool,
    driving: bool,
    shards: frozenset[int] | None = None,
) -> AsyncIterator[Sandbox]:
    """Open it, close it at the end. boxes: where programs run if they run in pods. driving: whether
    sessions are started or looked at here; others reach no cluster. shards: whose sessions are
    looked at until `watch_shards` names others; None = all."""
    profile = whole.sandbox
    if profile.runtime != "kubernetes" or profile.kubernetes is None:
        yield LocalSandbox(home.sandboxes, profile, unsafe=unsafe)
        return
    if unsafe:
        raise UserError("--unsafe-no-sandbox and a sandbox of pods exclude each other")
    from fde_ray.sandbox.kubernetes.scoring import ScoringOnly, scorer_of

    here = LocalSandbox(home.sandboxes, _here(profile))
    scorer = scorer_of(profile.kubernetes, here, boxes)
    if not driving:
        yield ScoringOnly(scorer)
        return
    if whole.planes.run is None or whole.planes.grade is None:
        raise UserError(
            "pods reach their planes by address: set planes.run and planes.grade to http://ip:port"
        )
    # The library of the cluster's client takes two seconds to load.
    from fde_ray.sandbox.kubernetes.backend import opened_kubernetes
    from fde_ray.sandbox.kubernetes.watching import ALL_SHARDS

    first = ALL_SHARDS if shards is None else shards
    async with opened_kubernetes(
        profile.kubernetes, environ, clock, scorer=scorer, shards=first
    ) as pods:
        yield pods


def _here(profile: SandboxProfile) -> SandboxProfile:
    """Return the profile of programs that run on this machine although sessions do not."""
    return profile.evolve(runtime="auto", kubernetes=None)
