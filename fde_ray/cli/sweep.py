"""`fde-ray sweep …`: plan, submit, follow, pause, cancel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .setting import JsonOption, ProfileOption, UnsafeOption

if TYPE_CHECKING:
    from fde_ray.analysis.summary import SweepSummary
    from fde_ray.engine.controller import SweepStatus
    from fde_ray.model.profile import Profile
    from fde_ray.model.specs import SweepSpec

app = typer.Typer(
    no_args_is_help=True,
    help="Plan and run sweeps: cases x conditions x systems x repeats.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

SpecArgument = Annotated[
    str, typer.Argument(help="A SweepSpec (YAML file), or a preset: demo, main, information, …")
]
NameArgument = Annotated[str, typer.Argument(help="Name of a submitted sweep.")]
CaseOption = Annotated[
    list[str] | None, typer.Option("--case", help="Only these cases of the spec (repeatable).")
]


@app.command()
def plan(
    spec: SpecArgument,
    case: CaseOption = None,
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Show the planned runs of a spec; nothing is stored or started.

    Example: fde-ray sweep plan demo
    """
    from .setting import profile_from, spec_from, wait_for

    wait_for(show_plan(profile_from(profile), narrowed(spec_from(spec), case), json_=json_))


@app.command()
def submit(
    spec: SpecArgument,
    case: CaseOption = None,
    profile: ProfileOption = None,
    json_: JsonOption = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="Where to write the report page.")
    ] = None,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Only store the sweep; `sweep resume` runs it.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Same as `sweep plan`.")] = False,
    unsafe: UnsafeOption = False,
) -> None:
    """Store a sweep and run it here to its end. The same spec again goes on where it stopped.

    Example: fde-ray sweep submit my_sweep.yaml --profile endpoints.yaml
    """
    from .output import note
    from .setting import profile_from, spec_from, wait_for

    chosen, document = profile_from(profile), narrowed(spec_from(spec), case)
    if dry_run:
        wait_for(show_plan(chosen, document, json_=json_))
        return
    if no_run:
        new = wait_for(_stored(chosen, document))
        note(f"sweep {document.name} {'stored' if new else 'was stored before'}")
        note(f"next: fde-ray sweep resume {document.name}")
        return
    _finish(
        wait_for(carried_out(chosen, document, unsafe=unsafe, quiet=json_, html=html)),
        document.name,
        json_=json_,
    )


@app.command()
def resume(
    name: NameArgument,
    profile: ProfileOption = None,
    json_: JsonOption = False,
    unsafe: UnsafeOption = False,
) -> None:
    """Run a stored sweep to its end: after a kill, a pause, a cancel or --no-run.

    Example: fde-ray sweep resume demo-1a2b3c4d
    """
    from .setting import profile_from, wait_for

    _finish(
        wait_for(_resumed(profile_from(profile), name, unsafe=unsafe, quiet=json_)),
        name,
        json_=json_,
    )


@app.command()
def pause(name: NameArgument, profile: ProfileOption = None) -> None:
    """Admit no further run; live runs finish.

    Example: fde-ray sweep pause my-sweep
    """
    _set_state("pause", name, profile)


@app.command()
def cancel(name: NameArgument, profile: ProfileOption = None) -> None:
    """Stop the sweep's runs that no other sweep wants. Finished results stay.

    Example: fde-ray sweep cancel my-sweep
    """
    _set_state("cancel", name, profile)


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(help="A sweep; none = all of them.")] = None,
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Show how far sweeps are.

    Example: fde-ray sweep status
    """
    from .output import emit_json, note, table
    from .setting import profile_from, wait_for

    found = wait_for(_statuses(profile_from(profile), name))
    rows = [status_row(one) for one in found]
    if json_:
        emit_json(rows)
        return
    if not rows:
        note("no sweep yet; start with: fde-ray demo")
        return
    header = ["sweep", "state", "runs", "done", "phases", "grades"]
    table(
        header,
        [
            [
                row["sweep"],
                row["state"],
                str(row["planned"]),
                str(row["done"]),
                " ".join(f"{k}:{v}" for k, v in row["phases"].items()),
                " ".join(f"{k}:{v}" for k, v in row["grades"].items()),
            ]
            for row in rows
        ],
    )


def narrowed(spec: SweepSpec, cases: list[str] | None) -> SweepSpec:
    """Keep only some cases; the sweep gets another name, since it is another sweep."""
    from fde_ray.model.errors import UserError

    if not cases:
        return spec
    unknown = [case for case in cases if case not in spec.cases]
    if unknown:
        raise UserError(f"case {unknown[0]!r} is not in this spec; it has {', '.join(spec.cases)}")
    return spec.evolve(cases=tuple(cases), name=f"{spec.name[:40]}-{'-'.join(cases)[:20]}")


def status_row(status: SweepStatus) -> dict[str, Any]:
    phases, grades = status.phases, status.grades
    return {
        "sweep": status.sweep.name,
        "state": status.sweep.state,
        "planned": len(status.runs),
        "done": sum(run.phase.is_terminal for run in status.runs),
        "complete": status.is_complete,
        "phases": {phase.value: count for phase, count in phases.items()},
        "grades": {grade.value: count for grade, count in grades.items()},
    }


async def show_plan(profile: Profile, spec: SweepSpec, *, json_: bool) -> None:
    from collections import Counter

    from fde_ray.engine.controller import Controller

    from .output import emit_json, say, table
    from .setting import system

    async with system(profile) as runtime:
        plans = Controller(runtime).plan(spec)
    if json_:
        emit_json(
            [
                {
                    "run_id": p.run_id,
                    "grade_id": p.grade_id,
                    "case": p.case_id,
                    "condition": p.condition.label,
                    "system": p.system.name,
                    "repeat": p.repeat,
                }
                for p in plans
            ]
        )
        return
    rows = Counter((p.system.name, p.condition.label) for p in plans)
    table(
        ["system", "condition", "cases", "repeats", "runs"],
        [
            [name, condition, str(len(spec.cases)), str(spec.repeats), str(count)]
            for (name, condition), count in rows.items()
        ],
    )
    hours = spec.limits.time * len(plans) / 3600
    say(f"{len(plans)} runs, at most {hours:,.1f} hours of agent time")


async def carried_out(
    profile: Profile, spec: SweepSpec, *, unsafe: bool, quiet: bool, html: Path | None = None
) -> tuple[SweepSummary, Path, bool]:
    """Submit and run a sweep; return its summary, the page written, and whether all runs ended
    with a result."""
    from fde_ray.engine.controller import Controller

    from .setting import system

    async with system(profile, unsafe=unsafe) as runtime:
        await runtime.sandbox.probe()
        await Controller(runtime).submit(spec)
        return await _run_here(runtime, spec.name, quiet=quiet, html=html)


async def _resumed(
    profile: Profile, name: str, *, unsafe: bool, quiet: bool
) -> tuple[SweepSummary, Path, bool]:
    from fde_ray.engine.controller import Controller

    from .setting import system

    async with system(profile, unsafe=unsafe) as runtime:
        await runtime.sandbox.probe()
        await Controller(runtime).resume(name)
        return await _run_here(runtime, name, quiet=quiet, html=None)


async def _run_here(
    runtime: Any, name: str, *, quiet: bool, html: Path | None
) -> tuple[SweepSummary, Path, bool]:
    from fde_ray.engine.campaign import carried_out as run_to_end
    from fde_ray.engine.findings import write_marks

    from .progress import ProgressLine
    from .report import written

    with ProgressLine(quiet=quiet) as line:
        (status,) = await run_to_end(runtime, [name], line.show)
    await write_marks(runtime, name)
    summary, page = await written(runtime, name, html)
    return summary, page, status.is_complete


async def _stored(profile: Profile, spec: SweepSpec) -> bool:
    from fde_ray.engine.controller import Controller

    from .setting import system

    async with system(profile) as runtime:
        new = await Controller(runtime).submit(spec)
        await Controller(runtime).pause(spec.name)
        return new


async def _statuses(profile: Profile, name: str | None) -> list[SweepStatus]:
    from fde_ray.engine.controller import Controller

    from .setting import system

    async with system(profile) as runtime:
        controller = Controller(runtime)
        names = [name] if name else [sweep.name for sweep in await runtime.store.sweeps()]
        return [await controller.status(one) for one in names]


def _set_state(action: str, name: str, profile: Path | None) -> None:
    from fde_ray.engine.controller import Controller

    from .output import note
    from .setting import profile_from, system, wait_for

    async def change() -> None:
        async with system(profile_from(profile)) as runtime:
            controller = Controller(runtime)
            await (controller.pause(name) if action == "pause" else controller.cancel(name))

    wait_for(change())
    note(f"sweep {name}: {action} noted; a running fde-ray acts on it within seconds")


def _finish(outcome: tuple[SweepSummary, Path, bool], name: str, *, json_: bool) -> None:
    from fde_ray.analysis.terminal import leaderboard_text

    from .output import columns, emit_json, note, say

    summary, page, complete = outcome
    if json_:
        emit_json(summary)
    else:
        say(leaderboard_text(summary, width=columns()))
        note(f"report: {page}")
    if not complete:
        note(f"not all runs have a result; see: fde-ray results ls {name}")
        raise typer.Exit(1)
