"""Around one extraction session: what it is given, what it leaves, what that is worth.

The engine starts the session with `extraction_inputs`, answers its evaluator calls with
`scored_archive`, unpacks its output and hands the folder to `Extraction.route`.
"""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Literal

from fde_ray.cases.records import SubmissionSchema
from fde_ray.model.base import Record, canonical_json
from fde_ray.model.errors import EvaluatorFault, RunFailure, StoreError, shortened
from fde_ray.model.failures import FailureKind
from fde_ray.model.grading import Evaluation, ExtractionReport, Provenance, Route, RouteStatus
from fde_ray.model.session import InputFile, Mount, SessionInputs, SessionLimits
from fde_ray.model.states import Channel
from fde_ray.protocol import extraction as script
from fde_ray.protocol import votes
from fde_ray.protocol.packs import PromptPack
from fde_ray.protocol.replies import MalformedReply

from . import provenance as provenance_check
from .archives import Caps
from .isolation import Isolation, Owned
from .scoring import Scorer, ScoringCase, evaluator_line
from .workspace import tree_hash, unpack_parts

WORKSPACE, CASE, EXTRACT = "/workspace", "/case", "/extract"
OUTPUT, SCRATCH = "/output", "/scratch"
ARCHIVES = ("workspace", "visible", "extract")
OUTPUT_CAPS = Caps(members=5_000, total_bytes=256 << 20, packed_bytes=256 << 20)
MAX_REPORT_BYTES = 1 << 20
MAX_SUMMARY_CHARS = 200_000
SCORED, STRUCTURAL, OUR_FAULT = 0, 3, 4

EvaluatorException = Literal["fault", "zero"]


def extraction_inputs(
    *,
    subject: str,
    pack: PromptPack,
    schema: SubmissionSchema,
    summary: str,
    scaffold: str,
    model: str,
    limits: SessionLimits,
    archives: Mapping[str, str],
    settings: Mapping[str, str | int | float | bool] | None = None,
    max_steps: int | None = None,
    evaluator: str = "evaluate",
    executable: bool = False,
) -> SessionInputs:
    """Return what the shim of an extraction session is told (protocol rule 19).

    archives: object keys of `workspace`, `visible` and `extract`. evaluator: the command that
    scores the output. Only the output folder is collected.
    """
    prompt = script.prompt(
        pack,
        canonical_json(schema),
        workspace=WORKSPACE,
        data_dir=f"{CASE}/data",
        instruction=f"{CASE}/instruction.md",
        information=f"{EXTRACT}/information.md",
        output_dir=OUTPUT,
        evaluator=evaluator,
        executable=executable,
    )
    note = InputFile(at=f"{WORKSPACE}/{script.SUMMARY_FILE}", text=summary[:MAX_SUMMARY_CHARS])
    return SessionInputs(
        subject=subject,
        role="extract",
        scaffold=scaffold,
        settings=dict(settings or {}),
        model=model,
        prompt=prompt,
        channel=Channel.TEXT,
        has_questions=False,
        max_steps=max_steps,
        workdir=SCRATCH,
        collect=OUTPUT,
        mounts=tuple(
            Mount(archive=name, at=at, read_only=True)
            for name, at in zip(ARCHIVES, (WORKSPACE, CASE, EXTRACT), strict=True)
        ),
        files=(note,),
        archives={name: archives[name] for name in ARCHIVES},
        limits=limits,
        evaluate=not executable,
    )


class ScoredOutput(Record):
    """The answer to an extractor's `evaluate`. `scored`: this reply ends its work (rule 19)."""

    exit_code: int
    stdout: str
    stderr: str
    output_sha256: str

    @property
    def scored(self) -> bool:
        return self.exit_code == SCORED


async def scored_archive(
    scorer: Scorer, case: ScoringCase, archive: bytes, owner: str | None = None
) -> ScoredOutput:
    """Evaluate an output folder sent as tar+gzip. owner: the grade that it is done for.

    The extractor learns that the evaluator failed, not how. RunFailure when the archive is unusable
    or the sandbox did not start.
    """
    with tempfile.TemporaryDirectory(prefix="fde-score-") as scratch:
        folder = Path(scratch) / "output"
        await unpack_parts(_one(archive), folder, OUTPUT_CAPS)
        digest = await asyncio.to_thread(output_hash, folder)
        try:
            evaluation = await scorer.evaluate(case, folder, digest, owner=owner)
        except EvaluatorFault as fault:
            if fault.kind is FailureKind.GRADER_SANDBOX:
                raise
            text = "the evaluator failed; the fault is not yours"
            return ScoredOutput(exit_code=OUR_FAULT, stdout="", stderr=text, output_sha256=digest)
    return ScoredOutput(
        exit_code=evaluation.exit_code,
        stdout=evaluator_line(evaluation) + "\n",
        stderr="",
        output_sha256=digest,
    )


async def _one(archive: bytes) -> AsyncIterator[bytes]:
    yield archive


def output_hash(folder: Path) -> str:
    """Return the tree hash of an output folder without `_result.json`, which is written last."""
    return tree_hash(folder, without=(os.fsencode(script.RESULT_FILE),))


def read_output(folder: Path) -> ExtractionReport:
    """Return the report in an output folder; RunFailure(EXTRACTOR_OUTPUT) when it is unusable.

    A success or partial report without a single written file is unusable too.
    """
    report = _report(folder / script.RESULT_FILE)
    empty = not any(path.is_file() for path in folder.rglob("*") if path.name != script.RESULT_FILE)
    if empty and report.status != "failed":
        raise _no_output("it reports an output and wrote no file")
    return report


def _report(path: Path) -> ExtractionReport:
    try:
        facts = path.lstat()
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_REPORT_BYTES:
            raise _no_output(f"{path.name} is no plain file of at most {MAX_REPORT_BYTES} bytes")
        return script.parse_report(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise _no_output(f"there is no {path.name}") from error
    except UnicodeDecodeError as error:
        raise _no_output(f"{path.name} is not UTF-8") from error
    except MalformedReply as error:
        raise _no_output(f"{path.name}: {error.reason}") from error


def _no_output(detail: str) -> RunFailure:
    return RunFailure(FailureKind.EXTRACTOR_OUTPUT, detail)


class RouteFacts(Record):
    """All that decides about one route. `first_scored_sha256` None = it never saw a score."""

    route: int
    model: str
    report: ExtractionReport | None = None
    output_sha256: str | None = None
    first_scored_sha256: str | None = None
    provenance: Provenance | None = None
    evaluation: Evaluation | None = None
    failure: FailureKind | None = None
    detail: str = ""


def route_from(facts: RouteFacts, evaluator_exception: EvaluatorException = "fault") -> Route:
    """Return the route with its vote."""
    failure, detail = _failure_of(facts)
    report = facts.report
    vote, reason = votes.vote_of(
        report.status if report else None,
        facts.provenance,
        facts.evaluation,
        facts.evaluation.exit_code if facts.evaluation else None,
        failure,
        evaluator_exception=evaluator_exception,
    )
    return Route(
        route=facts.route,
        model=facts.model,
        status=RouteStatus(report.status) if report else RouteStatus.ERROR,
        report=report,
        provenance=facts.provenance,
        evaluation=facts.evaluation,
        output_sha256=facts.output_sha256,
        failure=failure,
        detail=shortened(detail),
        vote=vote,
        vote_reason=reason,
    )


def _failure_of(facts: RouteFacts) -> tuple[FailureKind | None, str]:
    if facts.failure is not None:
        return facts.failure, facts.detail
    if was_changed(facts):
        return FailureKind.EXTRACTOR_CHANGED_OUTPUT, facts.detail
    if facts.provenance is not None and facts.provenance.verdict == "rejected":
        return FailureKind.PROVENANCE_REJECTED, "; ".join(facts.provenance.findings)
    return None, facts.detail


def was_changed(facts: RouteFacts) -> bool:
    """Tell whether the output is no longer the one that was scored first."""
    first = facts.first_scored_sha256
    return first is not None and facts.output_sha256 != first


class Extraction:
    """Turns what extraction sessions of one run left behind into routes."""

    def __init__(
        self,
        sandbox: Isolation,
        case: ScoringCase,
        schema: SubmissionSchema,
        workspace: Path,
        evaluator_exception: EvaluatorException = "fault",
        scorer: Scorer | None = None,
        *,
        owner: str | None = None,
        workspace_key: str | None = None,
    ) -> None:
        """owner: the grade that programs run for. workspace_key: of the workspace's archive in the
        object store; None = it is only here."""
        self._sandbox, self._scorer = Owned(sandbox, owner), scorer or Scorer(sandbox)
        self._owner, self._workspace_key = owner, workspace_key
        self._case, self._schema, self._workspace = case, schema, workspace
        self._evaluator_exception = evaluator_exception

    async def route(
        self, route: int, model: str, output: Path, first_scored_sha256: str | None = None
    ) -> Route:
        """Return the route of a session that ended by itself: report, provenance, score, vote.

        StoreError is no find of the route.
        """
        facts = RouteFacts(route=route, model=model, first_scored_sha256=first_scored_sha256)
        try:
            report = await asyncio.to_thread(read_output, output)
            digest = await asyncio.to_thread(output_hash, output)
            facts = facts.evolve(report=report, output_sha256=digest)
            if report.status != "failed" and not was_changed(facts):
                facts = await self._checked(facts, output, report)
        except StoreError:
            raise
        except RunFailure as failure:
            facts = facts.evolve(failure=failure.kind, detail=failure.detail)
        return route_from(facts, self._evaluator_exception)

    async def _checked(
        self, facts: RouteFacts, output: Path, report: ExtractionReport
    ) -> RouteFacts:
        found = await provenance_check.check(
            self._sandbox,
            self._workspace,
            output,
            self._schema,
            report,
            workspace_key=self._workspace_key,
        )
        facts = facts.evolve(provenance=found)
        if found.verdict == "rejected":
            return facts
        try:
            return facts.evolve(
                evaluation=await self._scorer.evaluate(
                    self._case, output, facts.output_sha256, owner=self._owner
                )
            )
        except EvaluatorFault as fault:
            return facts.evolve(failure=fault.kind, detail=fault.detail)

    def lost(self, route: int, model: str, kind: FailureKind, detail: str = "") -> Route:
        """Return the route of a session that broke or ran out of time."""
        facts = RouteFacts(route=route, model=model, failure=kind, detail=shortened(detail))
        return route_from(facts, self._evaluator_exception)
