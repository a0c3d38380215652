"""Whether what the cluster keeps for grading holds the grades that are in work at once."""

from __future__ import annotations

import re

from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.model.wording import counted, is_or_are
from fde_ray.sandbox.kubernetes.contract import PRIORITY_GRADE
from fde_ray.sandbox.kubernetes.fence.reserve import Grading, Reserve, grades_held, shortage
from fde_ray.sandbox.kubernetes.fence.space import CANARIES

from .calling import Api, Object
from .checks import Check
from .inventory import RENDER

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
_UNITS = {
    "m": 0.001, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
}  # fmt: skip


async def reserve_check(api: Api, profile: KubernetesProfile, grading: Grading) -> Check:
    listed = await api.request("GET", f"/api/v1/namespaces/{profile.namespace}/resourcequotas")
    quotas = {each["metadata"]["name"]: each for each in listed.get("items") or []}
    if PRIORITY_GRADE not in quotas:
        return Check("reserve", False, f"not there: {PRIORITY_GRADE}", RENDER)
    reserve = kept_by(quotas[PRIORITY_GRADE]["spec"]["hard"])
    if (missing := shortage(reserve, grading)) is not None:
        return Check("reserve", False, missing.detail, missing.remedy)
    held, roles = counted(grades_held(reserve, grading), "grade"), ", ".join(grading.roles)
    wanted = f"{grading.at_once} {is_or_are(grading.at_once)} wanted"
    return Check("reserve", True, f"{held} at once ({roles}), {wanted}")


def kept_by(hard: Object) -> Reserve:
    """Return what a quota leaves to grading pods; ValueError when it makes no sense."""
    cpu, memory = (_least(hard, name) for name in ("cpu", "memory"))
    bound = None if memory is None else int(memory)
    return Reserve(int(_quantity(hard["pods"])) - CANARIES, cpu, bound)


def _least(hard: Object, name: str) -> float | None:
    """Run pods ask for as much as they may take, so that both bounds are one."""
    keys = (name, f"requests.{name}", f"limits.{name}")
    return min((_quantity(hard[key]) for key in keys if key in hard), default=None)


def _quantity(text: object) -> float:
    found = _QUANTITY.fullmatch(str(text))
    if found is None:
        raise ValueError(f"{str(text)[:40]!r} is no quantity")
    return float(found[1]) * _UNITS.get(found[2] or "", 1)
