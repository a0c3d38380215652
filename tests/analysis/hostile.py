"""A run whose every free text attacks the reader."""

from __future__ import annotations

from fde_ray.model.dialogue import AskedQuestion, RefusedBatch, Round, Unit
from fde_ray.model.grading import (
    Evaluation,
    ExtractionReport,
    JudgeBallot,
    Provenance,
    Violation,
)
from fde_ray.model.result import AttemptNote, CostLine, RunResult
from tests.analysis.builders import make_metrics, make_point, make_result, make_route

ATTACK = (
    "</style></title></script><script>alert(1)</script><img src=http://evil.test/x onerror=go()>"
    '" onmouseover="go()\' {{ 7*7 }} {% raw %} \x1b[2J\x1b]8;;http://evil.test\x07 \u202egnp.exe'
)


def attack(where: str) -> str:
    return f"{where} {ATTACK}"


def make_hostile_result() -> RunResult:
    asked = AskedQuestion(
        text=attack("question"), answer=attack("answer"), options=(attack("option"),)
    )
    huge = AskedQuestion(text="huge " + "A" * 2_000_000, answer="B" * 2_000_000)
    many = tuple(AskedQuestion(text=f"q{i}?", answer="") for i in range(500))
    ballot = JudgeBallot(judge=0, model=attack("judge"), covered=None, error=attack("ballot"))
    point = make_point(
        attack("point"), covered=True, issue=attack("issue"), domain=attack("domain")
    )
    route = make_route(
        0,
        0.5,
        model=attack("route"),
        vote_reason=attack("vote"),
        detail=attack("detail"),
        report=ExtractionReport(status="success", notes=attack("notes")),
        provenance=Provenance(verdict="rejected", findings=(attack("finding"),) * 50),
        evaluation=Evaluation(
            exit_code=0,
            valid=True,
            stage="quality",
            score=0.5,
            violations=(Violation(code=attack("violation"), count=1),) * 50,
            case="017",
            version="1",
            scoring_hash="0" * 64,
        ),
    )
    return make_result(
        "017",
        attack("system"),
        condition="interact_req",
        case_title=attack("title"),
        scaffold=attack("scaffold"),
        model=attack("model"),
        sweep=attack("sweep"),
        offline=(attack("role"),),
        attempts=(AttemptNote(attempt=1, started_at=None, ended_at=None, detail=attack("note")),),
        rounds=(
            Round(
                round=1,
                turn_no=1,
                questions=(asked, huge),
                units=(Unit(index=1, turn=1, text=attack("unit")),),
            ),
            Round(round=2, turn_no=2, questions=many, units=()),
            *(Round(round=i, turn_no=i, questions=(), units=()) for i in range(3, 200)),
        ),
        refused_batches=(
            RefusedBatch(turn_no=3, reason="identical_batch", questions=(attack("refused"),)),
        ),
        summary=attack("summary") + "S" * 1_000_000,
        routes=(route,),
        chosen_route=0,
        coverage=(point.evolve(ballots=(ballot, *point.ballots[1:])),),
        metrics=make_metrics(atc=None, undefined=attack("undefined")),
        cost=(
            CostLine(
                role=attack("payer"),
                calls=1,
                prompt_tokens=None,
                completion_tokens=None,
                cost_nanousd=None,
            ),
        ),
        deviations=(attack("deviation"),),
    )
