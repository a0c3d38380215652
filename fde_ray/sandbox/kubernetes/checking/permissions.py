"""What this identity may do in a cluster, as the API server itself answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fde_ray.sandbox.kubernetes.fence.access import IN_CLUSTER, IN_NAMESPACE, Right

from .calling import Api, Object
from .checks import Check

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
EVERYWHERE = ""
TOO_MUCH = (
    Right("", "secrets", ("get",)),
    Right("", "pods/exec", ("create",)),
    Right("", "pods", ("update", "patch")),
)
"""Nothing that drives runs needs these in the run namespace."""


class Asked(NamedTuple):
    verb: str
    group: str
    resource: str
    namespace: str
    name: str = ""

    def __str__(self) -> str:
        where = f" in {self.namespace}" if self.namespace else " everywhere"
        return f"{self.verb} {self.resource}{where}"


async def rights_checks(api: Api, namespace: str) -> tuple[Check, Check]:
    """Return whether it may do what driving runs takes, and whether it may do no more."""
    needed = [*_asked(IN_NAMESPACE, namespace), *_asked(IN_CLUSTER, EVERYWHERE)]
    surplus = [*_asked(TOO_MUCH, namespace), Asked("create", "", "pods", EVERYWHERE)]
    allowed = await _allowed(api, [*needed, *surplus])
    missing = [str(each) for each in needed if each not in allowed]
    more = [str(each) for each in surplus if each in allowed]
    return _enough(missing), _no_more(more)


def _enough(missing: list[str]) -> Check:
    if not missing:
        return Check("rights", True, "may drive pods of the run namespace and read the fence")
    remedy = "bind this account as `fde-ray cluster render` does for the engine's"
    return Check("rights", False, f"may not {', '.join(missing)}", remedy)


def _no_more(more: list[str]) -> Check:
    """An operator may do more, so that it is told and not failed."""
    if not more:
        return Check("no more rights", True, "no secrets, no exec, no pods elsewhere")
    return Check(
        "no more rights",
        True,
        f"may also {', '.join(more)}: right for an operator, too much for the engine's account",
    )


def _asked(rights: Iterable[Right], namespace: str) -> Iterator[Asked]:
    for right in rights:
        for verb in right.verbs:
            name = right.names[0] if right.names else ""
            yield Asked(verb, right.group, right.resource, namespace, name)


async def _allowed(api: Api, asked: list[Asked]) -> set[Asked]:
    answers = await asyncio.gather(*(_is_allowed(api, each) for each in asked))
    return {each for each, answer in zip(asked, answers, strict=True) if answer}


async def _is_allowed(api: Api, asked: Asked) -> bool:
    resource, _, part = asked.resource.partition("/")
    attributes = {
        "verb": asked.verb,
        "group": asked.group,
        "resource": resource,
        "subresource": part,
        "namespace": asked.namespace,
        "name": asked.name,
    }
    review: Object = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await api.request("POST", _REVIEWS, body=review)
    return bool((answer.get("status") or {}).get("allowed"))
