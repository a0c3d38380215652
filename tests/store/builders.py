"""Records for the store's tests, each complete and cheap."""

from __future__ import annotations

from typing import Any, Literal

from fde_ray.metering.calls import CallFinish, CallOutcome, CallStart
from fde_ray.model.chat import Bill, ChatReply, Usage
from fde_ray.model.dialogue import AgentTurn, Replied
from fde_ray.model.grading import Route, RouteStatus
from fde_ray.model.ids import GradeIdentity, RunIdentity
from fde_ray.model.plan import RunPlan
from fde_ray.model.result import RunResult, Versions
from fde_ray.model.session import Commit, Part, SessionInputs, SessionLimits
from fde_ray.model.specs import Condition, Customer, Limits, Panel, System
from fde_ray.model.states import Channel, ConditionKind, GradeState, Role, SolveEnd

GRADE = "9" * 32
PANEL = tuple(f"offline/m{i}" for i in range(5))
SHA = "a" * 64


def run_id(n: int = 1) -> str:
    return f"{n % 256:02x}{n:030x}"


class ManualClock:
    """Time moves only when a test moves it."""

    def __init__(self, at: float = 1_000_000.0) -> None:
        self.at = at

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


def make_plan(n: int = 1, *, grade: str = GRADE, sweep: str = "demo") -> RunPlan:
    condition = Condition(kind=ConditionKind.HIDDEN)
    system = System(name="s", scaffold="scripted", model="offline/x")
    limits, panel, customer = Limits(), Panel(models=PANEL), Customer(model="offline/customer")
    return RunPlan(
        run_id=run_id(n),
        grade_id=grade,
        sweep=sweep,
        case_id="017",
        condition=condition,
        system=system,
        repeat=1,
        channel=Channel.TEXT,
        oracle_points=None,
        prompt="p" * 2000,
        limits=limits,
        customer=customer,
        panel=panel,
        detectors=PANEL,
        judges=PANEL,
        prompt_pack="builtin",
        budget_usd_per_run=None,
        identity=RunIdentity(
            case_id="017",
            visible_hash=SHA,
            prompt_hash=SHA,
            condition=condition,
            system=system,
            scaffold_lock=SHA,
            channel=Channel.TEXT,
            solve_pack=SHA,
            information_hash=SHA,
            customer_model=customer.model,
            customer_temperature=None,
            customer_max_tokens=customer.max_tokens,
            customer_failure=customer.failure,
            detectors=PANEL,
            limits=limits,
            budget_usd_per_run=None,
            repeat=1,
        ),
        grade_identity=GradeIdentity(
            scoring_hash=SHA,
            gt_hash=SHA,
            information_hash=SHA,
            grade_pack=SHA,
            panel=PANEL,
            panel_time_s=panel.time,
            panel_steps=panel.steps,
            judges=PANEL,
            passthrough=False,
            panel_stop="three_agree",
            evaluator_exception="fault",
        ),
    )


def make_inputs(subject: str, **changes: Any) -> SessionInputs:
    fields: dict[str, Any] = {
        "subject": subject,
        "role": "extract" if "/" in subject else "solve",
        "scaffold": "scripted",
        "model": "offline/x",
        "prompt": "p" * 2000,
        "channel": Channel.TEXT,
        "has_questions": True,
        "limits": SessionLimits(
            time_s=60,
            cpu=1,
            memory_bytes=1 << 30,
            disk_bytes=1 << 30,
            processes=64,
            archive_bytes=1 << 20,
            pause_cap_s=60,
        ),
    }
    return SessionInputs(**fields | changes)


def make_turn(turn_no: int = 1, text: str = "done") -> AgentTurn:
    return AgentTurn(
        seq=1, at=0, turn_no=turn_no, channel=Channel.TEXT, text=text, has_deliverable=True
    )


def make_replied(seq: int, turn_no: int = 1, end: SolveEnd | None = SolveEnd.SUBMITTED) -> Replied:
    return Replied(
        seq=seq, at=0, turn_no=turn_no, action="push" if end is None else "finish", solve_end=end
    )


def make_part(seq: int = 0, sha256: str = SHA) -> Part:
    return Part(seq=seq, sha256=sha256, size=10)


def make_commit(
    *parts: Part, final: bool = True, snapshot: str = "final", tree_hash: str = SHA
) -> Commit:
    return Commit(
        snapshot=snapshot,
        parts=parts,
        tree_hash=tree_hash,
        files=1,
        size_bytes=10,
        final=final,
    )


def make_bill(subject: str, role: Role = Role.AGENT, grade: str | None = None) -> Bill:
    run = subject.partition("/")[0].partition(".")[0]
    return Bill(run_id=run, subject=subject, role=role, case_id="017", grade_id=grade)


def make_call_start(
    call_id: str,
    subject: str,
    *,
    try_no: int = 1,
    role: Role = Role.AGENT,
    at: float = 1.0,
    **more: Any,
) -> CallStart:
    grade = subject.split("/")[1] if "/" in subject else None
    return CallStart(
        call_id=call_id,
        try_no=try_no,
        bill=make_bill(subject, role, grade),
        model="offline/x",
        request_sha256=SHA,
        price_hash=SHA,
        started_at=at,
        **more,
    )


def make_call_finish(
    call_id: str,
    *,
    try_no: int = 1,
    outcome: CallOutcome = "ok",
    cost_nanousd: int | None = None,
    source: Literal["provider", "offline", "unknown"] = "provider",
    **more: Any,
) -> CallFinish:
    usage = Usage(prompt_tokens=3, completion_tokens=2, source=source)
    reply = ChatReply(message={"content": "hi"}, model="x", usage=usage)
    return CallFinish(
        call_id=call_id,
        try_no=try_no,
        finished_at=2.0,
        outcome=outcome,
        usage=usage,
        cost_nanousd=cost_nanousd,
        reply=reply if outcome == "ok" else None,
        **more,
    )


def make_result(n: int = 1, *, grade: str = GRADE, score: float | None = 0.5) -> RunResult:
    return RunResult(
        run_id=run_id(n),
        grade_id=grade,
        sweep="demo",
        case_id="017",
        case_title="t",
        condition="hidden",
        system="s",
        scaffold="scripted",
        model="offline/x",
        repeat=1,
        channel=Channel.TEXT,
        solve_end=SolveEnd.SUBMITTED,
        routes=(Route(route=0, model="offline/m0", status=RouteStatus.SUCCESS),),
        grade=GradeState.SCORED,
        score=score,
        valid=True,
        versions=Versions(
            fde_ray="0",
            protocol="fde-bench/1",
            solve_pack=SHA,
            grade_pack=SHA,
            case_version="1",
            visible_hash=SHA,
            information_hash=SHA,
            gt_hash=SHA,
            scoring_hash=SHA,
            scaffold_lock=SHA,
        ),
    )
