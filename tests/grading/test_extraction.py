"""What an extraction session is given, and what its output is worth."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from fde_ray.grading.extraction import (
    Extraction,
    RouteFacts,
    extraction_inputs,
    output_hash,
    read_output,
    route_from,
    scored_archive,
)
from fde_ray.grading.scoring import Scorer, ScoringCase
from fde_ray.model.errors import RunFailure, StoreError
from fde_ray.model.failures import FailureKind
from fde_ray.model.grading import Evaluation, ExtractionReport, Provenance, RouteStatus, Violation
from fde_ray.model.session import SessionLimits
from fde_ray.protocol.packs import builtin_pack
from fde_ray.sandbox.records import Completed, Once
from tests.grading.doubles import LocalRunOnce
from tests.grading.extracts import as_csv, plan, reported, schema, write

LIMITS = SessionLimits(
    time_s=60,
    cpu=1,
    memory_bytes=1 << 30,
    disk_bytes=1 << 30,
    processes=64,
    archive_bytes=1 << 28,
    pause_cap_s=60,
)
EVALUATION = Evaluation(
    exit_code=0,
    valid=True,
    stage="quality",
    raw=2.0,
    quality=0.62,
    score=0.62,
    case="017",
    version="1.0.0",
    scoring_hash="ab",
)
INVALID = EVALUATION.evolve(
    valid=False, stage="constraint", score=0.0, violations=(Violation(code="w", count=1),)
)
STRUCTURAL = INVALID.evolve(stage="structure", exit_code=3)
CLEAN, REJECTED = Provenance(verdict="clean"), Provenance(verdict="rejected", findings=("x",))
UNCHECKED = Provenance(verdict="unchecked")
SUCCESS, PARTIAL = ExtractionReport(status="success"), ExtractionReport(status="partial")


def test_rule_19_extractor_sees_read_only_inputs_and_one_output() -> None:
    inputs = extraction_inputs(
        subject="r/g/0.1",
        pack=builtin_pack(),
        schema=schema(),
        summary="The plan is in out/final.csv.",
        scaffold="minimal",
        model="offline/x",
        limits=LIMITS,
        archives={"workspace": "w", "visible": "v", "extract": "e", "sealed": "s"},
    )
    assert {m.at for m in inputs.mounts} == {"/workspace", "/case", "/extract"}
    assert all(m.read_only for m in inputs.mounts)
    assert set(inputs.archives) == {"workspace", "visible", "extract"}
    assert inputs.collect == "/output"
    assert [(f.at, f.text, f.read_only) for f in inputs.files] == [
        ("/workspace/_agent_summary.md", "The plan is in out/final.csv.", True)
    ]
    assert inputs.evaluate
    assert not inputs.has_questions
    for path in ("/workspace", "/case/data", "/extract/information.md", "/output", "length_mm"):
        assert path in inputs.prompt


def facts(**changes: Any) -> RouteFacts:
    whole = RouteFacts(route=1, model="m", report=SUCCESS, provenance=CLEAN, evaluation=EVALUATION)
    return whole.evolve(**changes)


@pytest.mark.parametrize(
    ("changes", "vote", "failure", "status"),
    [
        pytest.param({}, 0.62, None, "success", id="scored"),
        pytest.param({"report": PARTIAL}, 0.62, None, "partial", id="partial"),
        pytest.param({"provenance": UNCHECKED}, 0.62, None, "success", id="unchecked"),
        pytest.param({"evaluation": INVALID}, 0.0, None, "success", id="invalid"),
        pytest.param({"evaluation": STRUCTURAL}, 0.0, None, "success", id="structural"),
        pytest.param(
            {"report": ExtractionReport(status="failed"), "provenance": None, "evaluation": None},
            None, None, "failed", id="failed",
        ),
        pytest.param(
            {"provenance": REJECTED, "evaluation": None},
            None, FailureKind.PROVENANCE_REJECTED, "success", id="rejected",
        ),
        pytest.param(
            {"output_sha256": "a", "first_scored_sha256": "b"},
            None, FailureKind.EXTRACTOR_CHANGED_OUTPUT, "success", id="changed",
        ),
        pytest.param(
            {"output_sha256": "a", "first_scored_sha256": "a"}, 0.62, None, "success", id="same"
        ),
        pytest.param(
            {"evaluation": None, "failure": FailureKind.EVALUATOR_CRASH},
            None, FailureKind.EVALUATOR_CRASH, "success", id="crash",
        ),
        pytest.param(
            {"report": None, "provenance": None, "evaluation": None,
             "failure": FailureKind.EXTRACTOR_TIMEOUT},
            None, FailureKind.EXTRACTOR_TIMEOUT, "error", id="timeout",
        ),
    ],
)  # fmt: skip
def test_rule_23_route_votes(
    changes: dict[str, Any], vote: float | None, failure: FailureKind | None, status: str
) -> None:
    route = route_from(facts(**changes))
    assert (route.vote, route.failure, route.status) == (vote, failure, RouteStatus(status))
    assert route.vote_reason


@pytest.mark.parametrize("first", [0.0, 0.62])
def test_rule_19_output_that_differs_from_the_first_scored_one_casts_no_vote(first: float) -> None:
    """The first score binds, 0 included: a later and better output counts for nothing."""
    scored = EVALUATION.evolve(score=first)
    kept = facts(evaluation=scored, output_sha256="a", first_scored_sha256="a")
    assert route_from(kept).vote == first
    route = route_from(kept.evolve(output_sha256="b"))
    assert (route.vote, route.failure) == (None, FailureKind.EXTRACTOR_CHANGED_OUTPUT)


def test_rule_23_evaluator_exception_may_be_recorded_as_zero() -> None:
    crashed = facts(evaluation=None, failure=FailureKind.EVALUATOR_CRASH)
    assert route_from(crashed, "zero").vote == 0.0
    assert route_from(facts(provenance=REJECTED, evaluation=None), "zero").vote is None


RESULT: dict[str, Any] = {
    "status": "success",
    "notes": "",
    "files_found": ["f.csv"],
    "files_normalized": ["plan.csv"],
}


def test_report_is_read_from_the_output_folder(tmp_path: Path) -> None:
    write(tmp_path / "o", {"plan.csv": b"x", "_result.json": json.dumps(RESULT).encode()})
    assert read_output(tmp_path / "o").files_normalized == ("plan.csv",)


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"{}",
        b"[]",
        b"\xff\xfe",
        b"done!",
        json.dumps(RESULT | {"status": "great"}).encode(),
        json.dumps(RESULT | {"unit_factors": {"x": 0}}).encode(),
        json.dumps(RESULT | {"unit_factors": {"x": "1"}}).encode(),
        json.dumps(RESULT | {"sources": {"plan.csv": ["f.csv"]}}).encode(),
        json.dumps(
            RESULT | {"rows": {"plan.csv": {"before": -1, "after": 1, "reason": ""}}}
        ).encode(),
        json.dumps(RESULT | {"notes": "x" * (2 << 20)}).encode(),
        b"[" * 100_000,
        b'{"status": NaN}',
    ],
    ids=range(14),
)
def test_unusable_report_is_a_route_failure(tmp_path: Path, content: bytes | None) -> None:
    write(
        tmp_path / "o", {"plan.csv": b"x"} | ({} if content is None else {"_result.json": content})
    )
    with pytest.raises(RunFailure) as caught:
        read_output(tmp_path / "o")
    assert caught.value.kind is FailureKind.EXTRACTOR_OUTPUT


def test_report_behind_a_link_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "o", {"plan.csv": b"x"})
    write(tmp_path, {"mine.json": json.dumps(RESULT).encode()})
    (tmp_path / "o" / "_result.json").symlink_to(tmp_path / "mine.json")
    with pytest.raises(RunFailure):
        read_output(tmp_path / "o")


def test_success_without_a_file_is_a_route_failure(tmp_path: Path) -> None:
    write(tmp_path / "o", {"_result.json": json.dumps(RESULT).encode()})
    with pytest.raises(RunFailure, match="wrote no file"):
        read_output(tmp_path / "o")
    write(tmp_path / "o", {"_result.json": json.dumps(RESULT | {"status": "failed"}).encode()})
    assert read_output(tmp_path / "o").status == "failed"


def test_report_is_not_part_of_the_output_hash(tmp_path: Path) -> None:
    write(tmp_path / "o", {"plan.csv": b"x"})
    before = output_hash(tmp_path / "o")
    write(tmp_path / "o", {"_result.json": b"{}"})
    assert output_hash(tmp_path / "o") == before
    write(tmp_path / "o", {"plan.csv": b"y"})
    assert output_hash(tmp_path / "o") != before


@pytest.fixture
def case(tmp_path: Path) -> ScoringCase:
    document = EVALUATION.jsonable()
    del document["exit_code"]
    zero = INVALID.evolve(stage="structure").jsonable()
    del zero["exit_code"]
    body = (
        "import json, os, sys\n"
        f"good, zero = {document!r}, {zero!r}\n"
        "folder = sys.argv[sys.argv.index('--submission-dir') + 1]\n"
        "names = os.listdir(folder)\n"
        "if 'crash' in names: sys.exit(4)\n"
        "print(json.dumps(good if 'plan.csv' in names else zero))\n"
        "sys.exit(0 if 'plan.csv' in names else 3)\n"
    )
    write(tmp_path / "sealed", {"evaluator.py": body.encode()})
    (tmp_path / "data").mkdir()
    return ScoringCase(
        case_id="017",
        version="1.0.0",
        scoring_hash="ab",
        sealed_dir=tmp_path / "sealed",
        data_dir=tmp_path / "data",
        timeout_s=5,
        memory_bytes=1 << 28,
    )


def archive(files: dict[str, bytes]) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(plain.getvalue())


async def test_evaluator_command_answers_with_line_and_hash(
    case: ScoringCase, sandbox: LocalRunOnce, tmp_path: Path
) -> None:
    write(tmp_path / "o", {"plan.csv": b"x"})
    answer = await scored_archive(Scorer(sandbox), case, archive({"plan.csv": b"x"}))
    assert (answer.exit_code, answer.scored) == (0, True)
    assert json.loads(answer.stdout)["score"] == 0.62
    assert answer.output_sha256 == output_hash(tmp_path / "o")
    missing = await scored_archive(Scorer(sandbox), case, archive({"other.csv": b"x"}))
    assert (missing.exit_code, missing.scored) == (3, False)
    broken = await scored_archive(Scorer(sandbox), case, archive({"crash": b""}))
    assert (broken.exit_code, broken.stdout, broken.scored) == (4, "", False)


async def test_hostile_output_archive_is_refused(case: ScoringCase, sandbox: LocalRunOnce) -> None:
    for stream in (b"", b"junk", archive({"../../up": b"x"})):
        with pytest.raises(RunFailure):
            await scored_archive(Scorer(sandbox), case, stream)


def output(tmp_path: Path, content: bytes, source: bytes) -> Path:
    report = reported({"f.csv": source}, {"plan.csv": ["f.csv"]})
    document = report.evolve(files_found=("f.csv",)).jsonable()
    write(tmp_path / "w", {"f.csv": source})
    write(tmp_path / "o", {"plan.csv": content, "_result.json": json.dumps(document).encode()})
    return tmp_path / "o"


async def test_session_output_becomes_a_route(
    case: ScoringCase, sandbox: LocalRunOnce, tmp_path: Path
) -> None:
    folder = output(tmp_path, as_csv(plan()), as_csv(plan()[::-1]))
    extraction = Extraction(sandbox, case, schema(), tmp_path / "w")
    route = await extraction.route(2, "m", folder, output_hash(folder))
    assert (route.vote, route.failure) == (0.62, None)
    changed = await extraction.route(2, "m", folder, "0" * 64)
    assert (changed.vote, changed.failure) == (None, FailureKind.EXTRACTOR_CHANGED_OUTPUT)
    assert changed.evaluation is None
    output(tmp_path, as_csv(plan()[1:]), as_csv(plan()))
    rejected = await extraction.route(2, "m", folder)
    assert rejected.failure is FailureKind.PROVENANCE_REJECTED
    assert rejected.detail
    (folder / "_result.json").unlink()
    silent = await extraction.route(2, "m", folder)
    assert (silent.status, silent.failure) == (RouteStatus.ERROR, FailureKind.EXTRACTOR_OUTPUT)
    lost = extraction.lost(2, "m", FailureKind.EXTRACTOR_TIMEOUT)
    assert (lost.status, lost.vote) == (RouteStatus.ERROR, None)


async def test_store_that_is_away_is_no_find_of_a_route(case: ScoringCase, tmp_path: Path) -> None:
    class Away:
        async def run_once(self, once: Once) -> Completed:
            raise StoreError("the store is away")

    folder = output(tmp_path, as_csv(plan()), as_csv(plan()))
    with pytest.raises(StoreError):
        await Extraction(Away(), case, schema(), tmp_path / "w").route(0, "m", folder)


async def test_grading_sandbox_that_does_not_start_is_a_grading_fault(
    case: ScoringCase, tmp_path: Path
) -> None:
    folder = output(tmp_path, as_csv(plan()), as_csv(plan()))
    extraction = Extraction(LocalRunOnce(broken=True), case, schema(), tmp_path / "w")
    route = await extraction.route(0, "m", folder)
    assert (route.vote, route.failure) == (None, FailureKind.GRADER_SANDBOX)
