"""How much grading a profile has in work at once, as the fence of a cluster has to hold it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fde_ray.model.profile import Profile
    from fde_ray.sandbox.kubernetes.fence import Grading


def grading_of_profile(profile: Profile, *, at_once: int) -> Grading:
    """at_once: where the profile does not say it."""
    from fde_ray.model.kubernetes import KubernetesProfile
    from fde_ray.sandbox.kubernetes.fence import grading_of

    # Its defaults hold for a profile that is still to be written.
    pods = profile.sandbox.kubernetes or KubernetesProfile(image="none", pull="Never")
    wanted = profile.concurrency.gradings or at_once
    return grading_of(pods, wanted, has_programs=_has_programs(profile))


def _has_programs(profile: Profile) -> bool:
    """Whether any case asks for a program; cases that cannot be read may."""
    from fde_ray.engine.runtime import cases_of
    from fde_ray.model.errors import UserError

    try:
        return any(case.meta.program is not None for case in cases_of(profile).values())
    except UserError:
        return True
