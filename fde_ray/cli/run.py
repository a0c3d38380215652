"""`fde-ray run …`: look at one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .setting import JsonOption, ProfileOption

if TYPE_CHECKING:
    from fde_ray.model.profile import Profile
    from fde_ray.model.result import RunResult

app = typer.Typer(
    no_args_is_help=True,
    help="Look at one run: result, dialogue, why it waits.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="The run id, or its first digits (at least 4).")
]


@app.command()
def show(run: RunArgument, profile: ProfileOption = None, json_: JsonOption = False) -> None:
    """Show what a run did and how it was graded.

    Example: fde-ray run show 1a2b3c
    """
    from .output import emit_json, note, program
    from .setting import profile_from, wait_for

    state, result = wait_for(_shown(profile_from(profile), run))
    if json_:
        emit_json({"state": state, "result": None if result is None else result.jsonable()})
        return
    _print_state(state)
    if result is not None:
        _print_result(result)
    short = state["run_id"][:12]
    note(f"next: {program()} run {'explain' if result is None else 'logs'} {short}")


@app.command()
def explain(run: RunArgument, profile: ProfileOption = None, json_: JsonOption = False) -> None:
    """Say where a run stands and what it waits for, by the scheduler's own decision.

    With --json, `wait` has the reason: paused, breaker, image, budget, backlog, quota, provider,
    capacity, tokens or fair_share; null = it does not wait to start.

    Example: fde-ray run explain 1a2b3c
    """
    from .output import as_called, emit_json, safe, say
    from .setting import profile_from, wait_for

    reasons = wait_for(_explained(profile_from(profile), run))
    if json_:
        emit_json(reasons)
        return
    for reason in reasons["reasons"]:
        say(safe(as_called(reason)))


@app.command()
def logs(run: RunArgument, profile: ProfileOption = None, json_: JsonOption = False) -> None:
    """Print a run's dialogue and its model calls in order of time.

    Example: fde-ray run logs 1a2b3c
    """
    from .output import emit_json, note, program, say
    from .setting import profile_from, wait_for

    events, calls = wait_for(_logged(profile_from(profile), run))
    if json_:
        emit_json({"events": events, "calls": calls})
        return
    timed = [(one["at"], _event_line(one)) for one in events]
    timed += [(one["at"], _call_line(one)) for one in calls]
    for _, line in sorted(timed, key=lambda pair: pair[0]):
        say(line)
    if not timed:
        note(f"nothing has happened yet; see: {program()} run explain {run}")


async def _shown(profile: Profile, prefix: str) -> tuple[dict[str, Any], RunResult | None]:
    from fde_ray.engine.findings import found_run, result_of

    from .setting import system

    async with system(profile) as runtime:
        sweep, run = await found_run(runtime, prefix)
        plan = await runtime.store.plan(run.run_id, run.grade_id)
        result = await result_of(runtime, run)
        state = {
            "run_id": run.run_id,
            "sweep": sweep,
            "case": plan.case_id,
            "condition": plan.condition.label,
            "system": plan.system.name,
            "repeat": plan.repeat,
            "phase": run.phase.value,
            "solve_end": None if run.solve_end is None else run.solve_end.value,
            "grade": run.grade.value,
            "budget_cut": None if run.budget_cut is None else run.budget_cut.value,
            "attempts": run.attempt,
            "failure": run.failure or run.grade_failure,
            "detail": run.detail or run.grade_detail,
        }
        return state, result


async def _explained(profile: Profile, prefix: str) -> dict[str, Any]:
    from fde_ray.engine.explaining import explained
    from fde_ray.engine.findings import found_run

    from .setting import system

    async with system(profile) as runtime:
        sweep, run = await found_run(runtime, prefix)
        told = await explained(runtime, sweep, run)
        wait = None if told.wait is None else told.wait._asdict()
        return {
            "run_id": run.run_id,
            "sweep": sweep,
            "phase": run.phase.value,
            "wait": wait,
            "reasons": told.reasons,
        }


async def _logged(
    profile: Profile, prefix: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    from fde_ray.engine.findings import found_run
    from fde_ray.model.clock import utc

    from .setting import system

    async with system(profile) as runtime:
        _, run = await found_run(runtime, prefix)
        events: list[dict[str, Any]] = []
        for attempt in await runtime.store.attempts_of(run.run_id):
            dialogue = await runtime.store.dialogue(attempt.subject)
            events += [
                {"subject": attempt.subject, **event.jsonable(), "at": utc(event.at)}
                for event in dialogue
            ]
        calls = [
            {
                "at": utc(call.started_at),
                "call_id": call.call_id,
                "role": call.role,
                "model": call.model,
                "state": call.state,
                "cost_nanousd": call.cost_nanousd,
                "offline": call.offline,
                "detail": call.detail,
            }
            for call in await runtime.store.calls_of(run.run_id)
        ]
        return events, calls


def _print_state(state: dict[str, Any]) -> None:
    from .output import safe, say

    say(
        safe(
            f"run {state['run_id']} of {state['sweep']}: case {state['case']}, "
            f"{state['condition']}, {state['system']}, repeat {state['repeat']}"
        )
    )
    say(
        safe(f"phase {state['phase']}, solving ended: {state['solve_end']}, grade {state['grade']}")
    )
    if state["failure"]:
        detail = (state["detail"] or "").removeprefix(state["failure"]).removeprefix(": ")
        say(safe(f"failure {state['failure']}: {detail}".rstrip(": ")))


def _print_result(result: RunResult) -> None:
    from fde_ray.analysis.cells import cut_text

    from .output import safe, say

    score = "none" if result.score is None else repr(result.score)
    zero = f", zero because of: {result.zero_signature}" if result.zero_signature else ""
    valid = {None: "unknown", True: "yes", False: "no"}[result.valid]
    say(f"score {score}, valid {valid}{zero}")
    if result.budget_cut is not None:
        say(f"NOT COMPARED: {cut_text(result)}; reports give the run no score")
    if result.offline:
        say(f"OFFLINE answers by: {', '.join(result.offline)} (no model result)")
    if result.unsafe_sandbox:
        say("UNSAFE: the agent ran without a sandbox")
    for route in result.routes:
        say(
            safe(
                f"route {route.route} {route.model}: {route.status.value}, "
                f"vote {'none' if route.vote is None else route.vote} ({route.vote_reason})"
            )
        )
    if result.metrics is not None:
        for name in ("recall", "precision", "ask_f1", "kqc1", "atc", "redundant"):
            metric = getattr(result.metrics, name)
            value = f"undefined: {metric.undefined}" if metric.value is None else metric.value
            say(safe(f"{name} {value}"))
    for one in result.rounds:
        say(f"round {one.round}")
        for question in one.questions:
            say(safe(f"  Q {question.text}"))
            say(safe(f"  A {question.answer}"))


def _call_line(call: dict[str, Any]) -> str:
    from .output import safe

    said = f"{call['at']}  call {call['role']} {call['model']} {call['state']}"
    return safe(f"{said} {call['detail'] or ''}".rstrip(), limit=2000)


def _event_line(event: dict[str, Any]) -> str:
    from .output import safe

    kind, said = event["event"], ""
    if kind == "turn":
        said = event["text"] or " / ".join(e["question"] for e in event["entries"])
    elif kind == "answered":
        said = event["answer"]
    elif kind == "replied":
        said = f"{event['action']} {event['solve_end'] or ''} {event['message']}"
    elif kind == "detected":
        said = " ".join(f"{b['model']}={b['asking']}" for b in event["ballots"])
    attempt = event["subject"].rpartition(".")[2]
    return safe(f"{event['at']}  attempt {attempt} {kind} {said}".rstrip(), limit=2000)
