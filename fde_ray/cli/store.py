"""`fde-ray store …`: the run store itself, and how it comes back when it is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .setting import JsonOption, ProfileOption

if TYPE_CHECKING:
    from fde_ray.engine.rebuilding import Rebuilt
    from fde_ray.model.profile import Profile

app = typer.Typer(
    no_args_is_help=True,
    help="The run store: the rows that say where every run is.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
SHOWN = 20
"""Lines of one kind that are shown; `--json` has all."""
TOLD_EVERY = 500
"""Runs between two lines of progress."""


@app.callback()
def _root() -> None:
    pass


@app.command()
def rebuild(
    profile: ProfileOption = None,
    json_: JsonOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what would be rebuilt; store nothing.")
    ] = False,
) -> None:
    """Make the rows of a lost run store again, from the bucket and the sessions that still run.

    Every row that is there stays, so that it may be stopped and begun again. Finished runs come
    back with their results and are not repeated. Sweeps with work left come back paused.
    Exit code 1: some sweep could not be rebuilt, or an object was spoilt.

    Examples:

      fde-ray store rebuild --dry-run

      fde-ray store rebuild --profile profile.yaml --json
    """
    from .output import emit_json, program
    from .setting import profile_from, wait_for

    given = "" if profile is None else f" --profile {profile}"
    go_on = f"{program()} store rebuild{given}"
    told = wait_for(_rebuilt(profile_from(profile), dry_run), go_on=go_on)
    if json_:
        emit_json(as_json(told))
    else:
        _show(told)
    if told.problems or told.findings:
        raise typer.Exit(1)


@app.command()
def restored(profile: ProfileOption = None, json_: JsonOption = False) -> None:
    """Say that the run store was put back from a backup, before anything else runs.

    Whoever drove the store before can change nothing any more; each next owner of a run holds its
    row against the bucket first: a result that is there counts, later attempts keep their numbers.

    Example: fde-ray store restored
    """
    from .output import emit_json, note, program
    from .setting import profile_from, wait_for

    number = wait_for(_restored(profile_from(profile)))
    if json_:
        following = f"{program()} sweep status"
        emit_json({"done": "restored", "incarnation": number, "next": following})
    else:
        note(f"noted: the run store is in its incarnation {number}")


async def _restored(profile: Profile) -> int:
    from .setting import system

    async with system(profile) as runtime:
        await runtime.store.refuse_if_held()
        return await runtime.store.raise_incarnation()


async def _rebuilt(profile: Profile, dry_run: bool) -> Rebuilt:
    from fde_ray.engine.rebuilding import Rebuilder
    from fde_ray.model.wording import counted

    from .output import note
    from .setting import system

    def watch(done: int, of: int) -> None:
        if done % TOLD_EVERY == 0 or done == of:
            note(f"{done} of {counted(of, 'run')} looked through")

    async with system(profile, writing=True, driving=True) as runtime:
        len(runtime.cases)  # a broken case package is told before anything is stored
        return await Rebuilder(runtime).rebuild(dry_run=dry_run, watch=watch)


def _show(told: Rebuilt) -> None:
    from fde_ray.engine.rebuilding import NOT_IN_THE_BUCKET
    from fde_ray.model.wording import counted

    from .output import note, program, safe, say, table

    if not told.sweeps:
        note("the bucket has no sweep that the run store lacks; there is nothing to rebuild")
        return
    table(
        ["sweep", "state", "runs", "what became of them"],
        [
            [
                sweep.name,
                sweep.state or "not rebuilt",
                str(sweep.runs),
                safe(sweep.problem)
                if sweep.problem is not None
                else " ".join(f"{fate.value}:{n}" for fate, n in sweep.fates.items()),
            ]
            for sweep in told.sweeps
        ],
    )
    for finding in told.findings[:SHOWN]:
        say(f"{finding.kind}: {safe(finding.key)}: {safe(finding.reason)}")
    if len(told.findings) > SHOWN:
        say(f"and {len(told.findings) - SHOWN} more; --json has all")
    if told.unknown_calls:
        runs = counted(told.unknown_calls, "run")
        note(f"the cost of {runs} is unknown: some calls are not there")
    if told.living:
        sessions = counted(len(told.living), "session")
        note(f"still at work for void attempts: {sessions}; the next fde-ray ends them")
    if told.strangers:
        sessions = counted(len(told.strangers), "session")
        note(f"at work here for no run of these sweeps: {sessions}, left alone")
    note(f"not in the bucket: {'; '.join(NOT_IN_THE_BUCKET)}")
    if told.dry_run:
        note(f"nothing is stored; to do it: {program()} store rebuild")
    elif any(sweep.state == "paused" for sweep in told.sweeps):
        note(f"next: {program()} sweep resume SWEEP goes on with a paused one")


def as_json(told: Rebuilt) -> dict[str, Any]:
    from fde_ray.engine.rebuilding import NOT_IN_THE_BUCKET

    return {
        "dry_run": told.dry_run,
        "incarnation": told.incarnation,
        "runs": told.runs,
        "fates": {fate.value: count for fate, count in told.fates.items()},
        "sweeps": [
            {
                "sweep": sweep.name,
                "state": sweep.state,
                "runs": sweep.runs,
                "fates": {fate.value: count for fate, count in sweep.fates.items()},
                "problem": sweep.problem,
            }
            for sweep in told.sweeps
        ],
        "findings": [finding.jsonable() for finding in told.findings],
        "runs_with_unknown_cost": told.unknown_calls,
        "living": list(told.living),
        "strangers": list(told.strangers),
        "not_in_the_bucket": list(NOT_IN_THE_BUCKET),
    }
