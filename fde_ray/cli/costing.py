"""Reads what a sweep has spent from the run store, as the records that `analysis.spending` adds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fde_ray.analysis.spending import Session, Spending
    from fde_ray.engine.runtime import Runtime
    from fde_ray.metering.compute import HostCost
    from fde_ray.metering.prices import PriceTable
    from fde_ray.model.ledgers import LedgerLine
    from fde_ray.model.pods import HostRate
    from fde_ray.model.profile import Profile
    from fde_ray.store.runs.spending import SessionRow


async def spending_of(runtime: Runtime, sweep: str) -> Spending:
    """Return all that was spent on what a sweep wants; UserError when there is no such sweep."""
    from fde_ray.analysis.spending import Spending, SpendingRun
    from fde_ray.metering.price_checks import strangers

    tenant, store = runtime.tenant, runtime.store
    await store.sweep(sweep, tenant=tenant)
    runs = [
        SpendingRun(
            run_id=run.run_id,
            grade_id=run.grade_id,
            case_id=run.case_id,
            condition=run.condition,
            system=run.system,
            repeat=run.repeat,
            is_valid=run.valid is True and run.score is not None and run.budget_cut is None,
        )
        for run in await store.runs_of_sweep(sweep, tenant=tenant)
    ]
    tallies = await store.tallies_of_sweep(sweep, tenant=tenant)
    rate, now = runtime.profile.compute.host, runtime.clock.now()
    rows = await store.sessions_of_sweep(sweep, tenant=tenant)
    answers = await store.answering_models(sweep, tenant=tenant)
    wire_names = {one.model for one in runtime.profile.endpoints if one.model}
    return Spending(
        sweep,
        runs,
        tallies,
        [session_of(row, rate, now) for row in rows],
        notes=tuple(strangers(answers, table_of(runtime.profile), wire_names)),
    )


def table_of(profile: Profile) -> PriceTable:
    """Return the price table of a profile, or the one that ships."""
    from pathlib import Path

    from fde_ray.metering.prices import load_prices

    return load_prices(Path(profile.prices).expanduser() if profile.prices else None)


async def ledger_of(runtime: Runtime, sweep: str) -> AsyncIterator[LedgerLine]:
    """Yield the rows of a sweep's ledger, run by run."""
    from fde_ray.model.ledgers import LedgerLine

    await runtime.store.sweep(sweep, tenant=runtime.tenant)
    async for page in runtime.store.calls_of_sweep(sweep, tenant=runtime.tenant):
        for row in page:
            yield LedgerLine.model_validate(row._asdict())


def session_of(row: SessionRow, rate: HostRate | None, now: float) -> Session:
    """Return a session on this machine with its cost; one at work is counted until `now`."""
    from fde_ray.analysis.spending import Session

    seconds = None
    if row.is_started:
        seconds = max(0.0, (now if row.ended_at is None else row.ended_at) - row.started_at)
    cost = _cost(row, rate, seconds)
    return Session(
        subject=row.subject,
        run_id=row.run_id,
        grade_id=row.grade_id,
        route=row.route,
        role=row.role,
        number=row.number,
        model=row.model or "unknown",
        failure=row.failure,
        machine="local",
        began_at=row.started_at if row.is_started else None,
        ended_at=row.ended_at,
        end_source="open" if row.ended_at is None else "session",
        seconds=seconds if row.is_started else 0.0,
        cpu=row.cpu,
        memory_bytes=row.memory_bytes,
        rate=_said(rate),
        nanousd=cost.nanousd,
        reason=cost.reason,
    )


def _cost(row: SessionRow, rate: HostRate | None, seconds: float | None) -> HostCost:
    from fde_ray.metering.compute import Held, HostCost, host_cost

    if not row.is_started:
        return HostCost(0, "never started")
    if row.cpu is None or row.memory_bytes is None:
        return HostCost(None, "the run store was lost: what its sandbox could use is not known")
    return host_cost(Held(row.cpu, row.memory_bytes, seconds, row.cpu_s), rate)


def _said(rate: HostRate | None) -> str:
    if rate is None:
        return ""
    if rate.free:
        return "free"
    return f"{rate.per_cpu_hour} per CPU hour, {rate.per_gib_hour} per GiB hour"
