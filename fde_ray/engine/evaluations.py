"""Evaluator calls of extractors, made by us in the scoring sandbox.

The extractor gets the evaluator's reply and nothing else; the hash of the first output that was
scored is kept, and the final output must still have it (protocol rule 19).
"""

from __future__ import annotations

from fde_ray.gateway.ports import EvaluateReply
from fde_ray.grading.extraction import scored_archive
from fde_ray.grading.scoring import Scorer
from fde_ray.model.boxes import owner_of
from fde_ray.model.errors import Refusal, RunFailure, StoreError
from fde_ray.model.failures import FailureKind, Fault
from fde_ray.store.runs import RunStore

from .material import Material


class Evaluations:
    def __init__(self, store: RunStore, material: Material, scorer: Scorer) -> None:
        self._store, self._material, self._scorer = store, material, scorer

    async def evaluate(self, subject: str, packed: bytes) -> EvaluateReply:
        """Score one output folder (tar+gzip) for the extractor of `subject`.

        Refusal: of the agent when the archive is unusable, ours when there is no sandbox for it.
        StoreError is nobody's fault here: the plane has an answer to it.
        """
        session = await self._store.session(subject)
        plan = await self._store.plan(session.run_id, session.grade_id)
        case = await self._material.scoring(plan.case_id)
        try:
            scored = await scored_archive(self._scorer, case, packed, owner_of(subject))
        except StoreError:
            raise
        except RunFailure as error:
            raise refusal_of(error) from error
        first = scored.scored and await self._store.set_first_score(subject, scored.output_sha256)
        return EvaluateReply(
            exit_code=scored.exit_code, stdout=scored.stdout, stderr=scored.stderr, first=first
        )


def refusal_of(error: RunFailure) -> Refusal:
    if error.kind is FailureKind.GRADER_SANDBOX:
        return Refusal(503, Fault.OURS, error.detail, code="no_sandbox", retry_after_s=1.0)
    return Refusal(400, Fault.AGENT, error.detail, code="bad_archive")
