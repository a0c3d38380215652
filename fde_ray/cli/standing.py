"""`fde-ray sweep status`: how far sweeps are, once or until they end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .setting import JsonOption, ProfileOption

if TYPE_CHECKING:
    from fde_ray.engine.campaign import Followed
    from fde_ray.engine.controller import SweepStatus
    from fde_ray.model.profile import Profile

BAR = 40
"""Characters of the longest bar."""
_HEADER = ["sweep", "state", "runs", "ended", "phases", "grades"]


def status(
    name: Annotated[
        str | None,
        typer.Argument(metavar="SWEEP", help="A sweep; none = all of them.", show_default=False),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Follow what another process carries out, to the end. Exit code 1: not every "
            "run has a result, or nobody is at work.",
        ),
    ] = False,
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Show how far sweeps are.

    Examples:

      fde-ray sweep status

      fde-ray sweep status my-sweep --watch

      fde-ray sweep status my-sweep --json
    """
    from .setting import profile_from, wait_for

    chosen = profile_from(profile)
    if watch:
        _show_end(wait_for(_followed(chosen, name)), name, json_=json_)
        return
    _show([status_row(one) for one in wait_for(_statuses(chosen, name))], name, json_=json_)


def status_row(status: SweepStatus) -> dict[str, Any]:
    from fde_ray.model.states import BudgetCut, GradeState, Phase

    phases, grades, cuts = status.phases, status.grades, status.cuts
    return {
        "sweep": status.sweep.name,
        "state": status.sweep.state,
        "planned": len(status.runs),
        "ended": status.ended,
        "to_grade": status.to_grade,
        "finished": status.is_finished,
        "complete": status.is_complete,
        "notices": list(status.notices),
        "phases": {phase.value: phases[phase] for phase in Phase if phases[phase]},
        "grades": {grade.value: grades[grade] for grade in GradeState if grades[grade]},
        "budget_cuts": {cut.value: cuts[cut] for cut in BudgetCut if cuts[cut]},
    }


def bars(phases: dict[str, int], width: int) -> list[str]:
    """Return a line for each phase that runs are in, in the order of a run's life."""
    from fde_ray.model.states import Phase

    most = max(phases.values(), default=0)
    room = max(1, min(BAR, width - 25))
    return [
        f"{phase.value:<13}{phases[phase.value]:>7}  {'#' * max(1, room * count // most)}"
        for phase in Phase
        if (count := phases.get(phase.value, 0))
    ]


def _show(rows: list[dict[str, Any]], name: str | None, *, json_: bool) -> None:
    from .output import columns, emit_json, note, program, say, table

    if json_:
        emit_json(rows)
        return
    if not rows:
        note(f"no sweep yet; start with: {program()} demo")
        return
    table(
        _HEADER,
        [
            [
                row["sweep"],
                "finished" if row["finished"] else row["state"],
                str(row["planned"]),
                str(row["ended"]),
                " ".join(f"{k}:{v}" for k, v in row["phases"].items()),
                " ".join(f"{k}:{v}" for k, v in row["grades"].items()),
            ]
            for row in rows
        ],
    )
    if name is not None:
        for line in bars(rows[0]["phases"], columns()):
            say(line)
    for row in rows:
        if row["budget_cuts"]:
            cuts = ", ".join(f"{count} {cut}" for cut, count in row["budget_cuts"].items())
            note(f"{row['sweep']}: budgets cut runs ({cuts}); reports give them no score")
    for notice in sorted({notice for row in rows for notice in row["notices"]}):
        note(notice)


def _show_end(end: Followed, name: str | None, *, json_: bool) -> None:
    from .output import note, program

    _show([status_row(one) for one in end.statuses], name, json_=json_)
    if not end.is_settled:
        sweep = name or "SWEEP"
        note(f"no fde-ray is at work; {program()} sweep resume {sweep} goes on with it")
    if not all(one.is_complete for one in end.statuses):
        raise typer.Exit(1)


async def _statuses(profile: Profile, name: str | None) -> list[SweepStatus]:
    from fde_ray.engine.controller import Controller

    from .setting import system

    async with system(profile) as runtime:
        controller = Controller(runtime)
        names = [name] if name else [sweep.name for sweep in await runtime.store.sweeps()]
        return [await controller.status(one) for one in names]


async def _followed(profile: Profile, name: str | None) -> Followed:
    from fde_ray.engine.campaign import followed
    from fde_ray.engine.controller import Controller

    from .progress import ProgressLine
    from .setting import system

    async with system(profile) as runtime:
        if name is not None:
            await Controller(runtime).status(name)  # one that is not there is told at once
        names = [name] if name else [sweep.name for sweep in await runtime.store.sweeps()]
        with ProgressLine() as line:
            return await followed(runtime, names, line.show)
