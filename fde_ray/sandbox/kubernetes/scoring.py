"""Where evaluators run while sessions are pods: in pods, or here, or nowhere, as the operator says.

A program on this machine is in a box of its own, but not in a pod: `scoring: local` is a choice,
and covers what grades alone. What an agent made never runs where sessions are driven.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol

from fde_ray.model.errors import SandboxError
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.sandbox.records import (
    Completed,
    Handle,
    Once,
    Outcome,
    SandboxFacts,
    SessionStart,
    SessionState,
)


class Scorer(Protocol):
    async def run_once(self, once: Once) -> Completed: ...


class NoScorer:
    async def run_once(self, once: Once) -> Completed:
        raise SandboxError(
            "evaluators are refused here: set sandbox.kubernetes.scoring to pods, or to local, and "
            "they run in a sandbox of the machine that drives"
        )


class Apart:
    """What grades runs here, what an agent made in pods."""

    def __init__(self, here: Scorer, pods: Scorer) -> None:
        self._here, self._pods = here, pods

    async def run_once(self, once: Once) -> Completed:
        return await (self._pods if once.untrusted else self._here).run_once(once)


def scorer_of(profile: KubernetesProfile, here: Scorer, pods: Scorer) -> Scorer:
    return {"local": Apart(here, pods), "pods": pods, "refuse": NoScorer()}[profile.scoring]


class ScoringOnly:
    """For processes that start no sessions, and so need no way to the cluster."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    async def probe(self) -> SandboxFacts:
        return _refused()

    async def start(self, session: SessionStart) -> Handle:
        return _refused()

    def handle_of(self, subject: str) -> Handle | None:
        return None

    async def state(self, handle: Handle) -> SessionState:
        return _refused()

    async def over(self, handles: Sequence[Handle]) -> frozenset[str]:
        return frozenset()

    async def outcome(self, handle: Handle) -> Outcome:
        return _refused()

    async def stop(self, handle: Handle) -> None:
        _refused()

    async def remove(self, handle: Handle) -> None:
        _refused()

    async def run_once(self, once: Once) -> Completed:
        return await self._scorer.run_once(once)


def _refused() -> NoReturn:
    raise SandboxError("this process drives no sessions: it has no way to the cluster")
