"""Running a sweep to its end in this process, and telling what it came to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

if TYPE_CHECKING:
    from fde_ray.analysis.summary import SweepSummary
    from fde_ray.engine.runtime import Runtime
    from fde_ray.model.profile import Profile
    from fde_ray.model.specs import SweepSpec


LOOK_S, LOOKS = 0.25, 8
"""Between two looks at whether a person stops the work; after so many it is spoken of."""


class Outcome(NamedTuple):
    """What a sweep came to. complete: every planned run has a result."""

    summary: SweepSummary
    page: Path
    complete: bool


async def carried_out(
    profile: Profile, spec: SweepSpec, *, unsafe: bool, go_on: str, html: Path | None = None
) -> Outcome:
    """Submit and run a sweep. One that was paused or cancelled goes on.

    go_on: the command that goes on with it after an interruption.
    """
    from fde_ray.engine.controller import Controller
    from fde_ray.sandbox.proving import fit_for_sweeps

    from .report import place_for
    from .setting import system

    if html is not None:
        place_for(html)
    async with system(profile, unsafe=unsafe, writing=True, driving=True) as runtime:
        await fit_for_sweeps(runtime.sandbox, profile.planes)
        # Before anything is stored: the other process would begin to carry it out.
        await _refuse_if_held(runtime)
        controller = Controller(runtime)
        await controller.submit(spec)
        # Stored before: go on. New: try what another sweep, sharing its runs, had set aside.
        await controller.resume(spec.name)
        return await _run_here(runtime, spec.name, html, go_on)


async def resumed(profile: Profile, name: str, *, unsafe: bool, go_on: str) -> Outcome:
    from fde_ray.engine.controller import Controller
    from fde_ray.sandbox.proving import fit_for_sweeps

    from .setting import system

    async with system(profile, unsafe=unsafe, writing=True, driving=True) as runtime:
        controller = Controller(runtime)
        await controller.status(name)
        await fit_for_sweeps(runtime.sandbox, profile.planes)
        await controller.resume(name)
        return await _run_here(runtime, name, None, go_on)


async def _refuse_if_held(runtime: Runtime) -> None:
    """UserError when another process carries out sweeps of this store."""
    if runtime.profile.engine == "ray":
        from fde_ray.engine.ray.leftovers import clear, is_joined

        if is_joined(os.environ):
            return  # a new fleet takes over from one that was left on the cluster
        clear(runtime.home.root)
    await runtime.store.refuse_if_held()


async def _run_here(runtime: Runtime, name: str, html: Path | None, go_on: str) -> Outcome:
    from fde_ray.engine.campaign import carried_out as run_to_end

    from .exits import Interrupted
    from .output import note
    from .progress import ProgressLine
    from .report import written

    len(runtime.cases)  # a broken case package is told before anything starts
    note(f"sweep {name}, state in {runtime.home.root}; Ctrl-C stops it and loses nothing")
    if runtime.profile.engine == "ray":
        note("connecting to Ray, which takes some seconds ...")
    with ProgressLine() as line:

        def given_up() -> int:
            line.end()
            return Interrupted(go_on).told()

        with _stopping_told():
            (status,) = await run_to_end(runtime, [name], line.show, given_up)
    summary, page = await written(runtime, name, html)
    return Outcome(summary, page, status.is_complete)


@contextmanager
def _stopping_told() -> Iterator[None]:
    """Say that Ctrl-C was heard when the block takes its time to end."""
    import asyncio

    from .output import note

    work = asyncio.current_task()

    async def watch() -> None:
        # Nothing wakes who looks on when a task is cancelled; a timeout in it does that in passing.
        seen = 0
        while work is not None and seen < LOOKS:
            await asyncio.sleep(LOOK_S)
            seen = seen + 1 if work.cancelling() else 0
        note("stopping: what is held is given back; Ctrl-C again ends it at once")

    watching = asyncio.create_task(watch(), name="stopping")
    try:
        yield
    finally:
        watching.cancel()


def resuming(name: str, profile: Path | None, engine: str | None = None) -> str:
    """Return the command that goes on with a sweep."""
    from .output import program

    options = {"--profile": profile, "--engine": engine}
    given = "".join(f" {option} {value}" for option, value in options.items() if value)
    return f"{program()} sweep resume {name}{given}"


def finish(outcome: Outcome, name: str, *, json_: bool) -> None:
    """Show what a sweep came to; exit code 1 unless every run has a result."""
    from fde_ray.analysis.terminal import leaderboard_text

    from .output import columns, emit_json, note, program, say

    if json_:
        emit_json(outcome.summary)
    else:
        say(leaderboard_text(outcome.summary, width=columns()))
    note(f"report: {outcome.page}")
    if not outcome.complete:
        note(f"not all runs have a result; see: {program()} results ls {name}")
        raise typer.Exit(1)
    note(f"next: {program()} results ls {name}, then {program()} run show RUN")
