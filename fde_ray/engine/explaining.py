"""Why a run stands where it stands, in sentences, from live rows."""

from __future__ import annotations

from typing import NamedTuple

from fde_ray.model.clock import utc
from fde_ray.model.failures import FAILURES, FailureKind
from fde_ray.model.scheduling import Wait, WaitReason
from fde_ray.model.states import BudgetCut, GradeState, PauseCause, Phase, SolveEnd
from fde_ray.model.wording import counted, is_or_are
from fde_ray.store.runs import AttemptRow, SweepRun

from .controller import Controller
from .outcome import offline_roles
from .runtime import Runtime
from .scheduling import Scheduler

_PAUSES = {
    PauseCause.OUTAGE: "we could not serve its request",
    PauseCause.NO_SUPERVISOR: "no fde-ray is at work",
    PauseCause.CUSTOMER_DOWN: "the customer's model does not answer",
    PauseCause.DETECTOR_DOWN: "the detectors' models do not answer",
    PauseCause.PROVIDER: "the agent's model cannot be reached or does not answer",
    PauseCause.RATE_LIMIT: "it waits for our own rate limit",
    PauseCause.BUDGET_WAIT: "it waits for its share of a budget",
}
_CUTS = {
    BudgetCut.STOPPED: "A budget ended its solving, so that reports give it no score.",
    BudgetCut.SHORTENED: "Its budget cut replies of its model short, so that reports give it no"
    " score.",
}


class Explanation(NamedTuple):
    """Sentences; the first says where the run is. `wait` = why it has not started."""

    reasons: list[str]
    wait: Wait | None


async def explained(runtime: Runtime, sweep: str, run: SweepRun) -> Explanation:
    wait = await wait_of(runtime, sweep, run)
    return Explanation(await _reasons(runtime, sweep, run, wait), wait)


async def _reasons(runtime: Runtime, sweep: str, run: SweepRun, wait: Wait | None) -> list[str]:
    said = [f"The run is {_place(run).rstrip('.')}."]
    if run.phase is Phase.DONE:
        said += await _labels(runtime, run)
    if run.budget_cut is not None:
        said.append(_CUTS[run.budget_cut])
    attempts = await runtime.store.attempts_of(run.run_id)
    said += [_loss(one) for one in attempts if one.failure is not None]
    if run.phase is Phase.QUEUED:
        said += await _waiting(runtime, sweep, wait)
    elif not run.phase.is_terminal:
        said += await _working(runtime, sweep, run, attempts)
    elif run.grade_failure:
        said.append(f"Its grade is missing: {_text(run.grade_failure)}")
    if run.phase is Phase.QUARANTINED and run.solve_end is not SolveEnd.ISOLATION_LOST:
        said.append(f"`fde-ray sweep resume {sweep}` tries it again once the cause is mended.")
    if run.phase is not Phase.DONE:
        said += await _failed_call(runtime, run)
    return said


async def _labels(runtime: Runtime, run: SweepRun) -> list[str]:
    roles = offline_roles(await runtime.store.plan(run.run_id, run.grade_id))
    return [f"OFFLINE answers by: {', '.join(roles)} (no model result)."] if roles else []


async def _failed_call(runtime: Runtime, run: SweepRun) -> list[str]:
    calls = await runtime.store.calls_of(run.run_id)
    failed = [call for call in calls if call.state in ("failed", "ambiguous")]
    last = failed[-1:]
    return [f"Its last failed model call ({c.role}, {c.model}): {c.detail or ''}" for c in last]


def _place(run: SweepRun) -> str:
    if run.phase is Phase.DONE:
        score = "" if run.score is None else f", score {run.score}"
        return f"done, grade {run.grade.value}{score}"
    if run.phase is Phase.QUARANTINED and run.solve_end is not SolveEnd.ISOLATION_LOST:
        kind = run.failure or run.grade_failure
        return f"set aside: {_text(kind)}" if kind else "set aside"
    return run.phase.value


async def wait_of(runtime: Runtime, sweep: str, run: SweepRun) -> Wait | None:
    """Return why a queued run has not started, by the scheduler's own decision over live rows.

    None: it may start, and does as soon as its supervisor has a place for it.
    """
    if run.phase is not Phase.QUEUED:
        return None
    state = (await runtime.store.sweep(sweep, tenant=runtime.tenant)).state
    if state != "running":
        return Wait(WaitReason.PAUSED, f"its sweep is {state}")
    return (await Scheduler(runtime).explained()).waits.get(run.run_id)


async def _waiting(runtime: Runtime, sweep: str, wait: Wait | None) -> list[str]:
    if wait is not None and wait.reason is WaitReason.PAUSED:
        return [f"It waits: {wait.detail}; `fde-ray sweep resume {sweep}` goes on with it."]
    said = []
    if (holder := await runtime.store.lease_holder()) is None:
        said.append(f"No fde-ray is at work; `fde-ray sweep resume {sweep}` starts one.")
    else:
        said.append(f"Process {holder.pid} on {holder.host} is at work on this store.")
    if wait is None:
        said.append("It may start: it is next, or waits for its supervisor to have a place.")
    else:
        said.append(f"It waits ({wait.reason.value}): {wait.detail}.")
        said += [_HINTS[wait.reason].format(sweep=sweep)] if wait.reason in _HINTS else []
    phases = await Controller(runtime).phases(sweep)
    ahead = phases[Phase.QUEUED]
    live = sum(n for phase, n in phases.items() if not phase.is_terminal) - ahead
    under_way = f"{counted(live, 'run')} of the sweep {is_or_are(live)} under way"
    said.append(f"{under_way} and {ahead} {is_or_are(ahead)} queued.")
    return said


_HINTS = {
    WaitReason.BREAKER: "A probe follows by itself; `fde-ray sweep resume {sweep}` closes the "
    "breaker once the cause is mended.",
    WaitReason.IMAGE: "A probe follows by itself; `fde-ray sweep resume {sweep}` closes the "
    "breaker once the image is mended.",
    WaitReason.BUDGET: "Raise the budget, or price the calls, to go on.",
}


async def _working(
    runtime: Runtime, sweep: str, run: SweepRun, attempts: list[AttemptRow]
) -> list[str]:
    said = await _stopping(runtime, sweep, run)
    if await runtime.store.lease_holder() is None:
        said.append("No fde-ray is at work; the sandbox waits, its clock stands still.")
    live = next((one for one in attempts if one.state != "closed"), None)
    if live is not None:
        open_pauses = [p for p in await runtime.store.pauses(live.subject) if p.closed_at is None]
        said += [
            f"Its clock stands still since {utc(p.opened_at)}: {_PAUSES[p.cause]}."
            for p in open_pauses
        ]
        if live.heartbeat_at is not None:
            said.append(f"Its shim was last heard at {utc(live.heartbeat_at)}.")
    if run.grade is GradeState.PENDING and run.phase not in (Phase.SOLVING, Phase.PROVISIONING):
        tries = await runtime.store.attempts_of(run.run_id, "extract")
        closed = sum(one.state == "closed" for one in tries)
        if tries:
            every = counted(len(tries), "extraction try", "extraction tries")
            said.append(f"{closed} of {every} ended.")
    return said


async def _stopping(runtime: Runtime, sweep: str, run: SweepRun) -> list[str]:
    """Say what becomes of a run under way whose sweep does not run."""
    state = (await runtime.store.sweep(sweep, tenant=runtime.tenant)).state
    if state == "running":
        return []
    on = f"`fde-ray sweep resume {sweep}` goes on with it"
    if state == "paused":
        return [f"Its sweep is paused: this run goes on to its end, no other starts; {on}."]
    if await runtime.store.is_wanted(run.run_id):
        return ["Its sweep is cancelled; the run goes on, because another sweep wants it."]
    return [f"Its sweep is cancelled, and nobody else wants the run: it is to be stopped; {on}."]


def _loss(attempt: AttemptRow) -> str:
    kind = attempt.failure or ""
    detail = (attempt.detail or "").removeprefix(kind).removeprefix(": ")
    return f"Attempt {attempt.number} was lost: {_text(kind)} {detail}".rstrip()


def _text(kind: str) -> str:
    return FAILURES[FailureKind(kind)].text if kind in set(FailureKind) else kind
