"""`fde-ray sweep …`: plan, submit, follow, pause, cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .setting import (
    EngineOption,
    HtmlOption,
    JsonOption,
    NameArgument,
    ProfileOption,
    UnsafeOption,
)

if TYPE_CHECKING:
    from fde_ray.model.profile import Profile
    from fde_ray.model.specs import SweepSpec

app = typer.Typer(
    no_args_is_help=True,
    help="Plan and run sweeps: cases x conditions x systems x repeats.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

SpecArgument = Annotated[
    str,
    typer.Argument(
        metavar="SPEC",
        help="A SweepSpec (YAML file), or a preset: demo, information, main, oracle, policy.",
    ),
]
CaseOption = Annotated[
    list[str] | None,
    typer.Option(
        "--case", metavar="ID", help="Only this case of the spec; repeatable.", show_default=False
    ),
]
AvailableOption = Annotated[
    bool,
    typer.Option(
        "--available", help="Leave out cases and systems that are not here, instead of refusing."
    ),
]


@app.command()
def plan(
    spec: SpecArgument,
    case: CaseOption = None,
    available: AvailableOption = False,
    assume: Annotated[
        list[str] | None,
        typer.Option(
            "--assume",
            metavar="ROLE=PROMPT/OUTPUT",
            help="Tokens that a model of this role takes in one run, for the forecast where no "
            "such run is done: agent=1M-6M@80%/50k-300k (80 % of the prompt from a cache). "
            "Repeatable.",
            show_default=False,
        ),
    ] = None,
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Show the planned runs of a spec and what they may cost; nothing is stored or started.

    The forecast stands on done runs of the same system and condition in this store, else on what
    you assume; it always says on which.

    Examples:

      fde-ray sweep plan demo

      fde-ray sweep plan my_sweep.yaml --case 017 --json

      fde-ray sweep plan my_sweep.yaml --assume agent=1M-6M@80%/50k-300k --assume judge=20k/1k
    """
    from .planning import show_plan
    from .setting import profile_from, wait_for

    chosen = profile_from(profile)
    document = chosen_spec(spec, case, chosen, only_available=available)
    wait_for(show_plan(chosen, document, json_=json_, assume=assume or ()))


@app.command()
def submit(
    spec: SpecArgument,
    case: CaseOption = None,
    available: AvailableOption = False,
    profile: ProfileOption = None,
    json_: JsonOption = False,
    html: HtmlOption = None,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Only store the sweep; `sweep resume` runs it.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Same as `sweep plan`; for a sweep that is there, as `sweep diff`."
        ),
    ] = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Change the spec of the sweep of this name; equal runs and grades are kept.",
        ),
    ] = False,
    engine: EngineOption = None,
    unsafe: UnsafeOption = False,
) -> None:
    """Store a sweep and run it here to its end. The same spec again goes on where it stopped.

    Examples:

      fde-ray sweep submit my_sweep.yaml --profile profile.yaml

      fde-ray sweep submit demo --case 017 --json > summary.json
    """
    from .endpoints import warn
    from .output import emit_json, note
    from .running import carried_out, finish, resuming
    from .setting import profile_from, wait_for

    chosen = profile_from(profile, engine=engine)
    document = chosen_spec(spec, case, chosen, only_available=available)
    name = document.name
    if dry_run:
        wait_for(_show(chosen, document, json_=json_))
        return
    if replace:
        from .comparing import replaced

        wait_for(replaced(chosen, document))
    if no_run:
        new = wait_for(_stored(chosen, document))
        if json_:
            emit_json({"sweep": name, "new": new})
        if new:
            note(f"sweep {name} is stored")
        elif not replace:
            note(f"sweep {name} was stored before; it is left as it is")
        note(f"next: {resuming(name, profile, engine)}")
        return
    wait_for(warn(chosen))
    go_on = resuming(name, profile, engine)
    work = carried_out(chosen, document, unsafe=unsafe, html=html, go_on=go_on)
    finish(wait_for(work, go_on=go_on), name, json_=json_)


@app.command()
def resume(
    name: NameArgument,
    profile: ProfileOption = None,
    json_: JsonOption = False,
    engine: EngineOption = None,
    unsafe: UnsafeOption = False,
) -> None:
    """Run a stored sweep to its end: after a kill, a pause, a cancel or --no-run.

    Runs that troubles of ours had set aside are tried again. Results that are there are kept.

    Example: fde-ray sweep resume demo-1a2b3c4d
    """
    from .endpoints import warn
    from .running import finish, resumed, resuming
    from .setting import profile_from, wait_for

    chosen = profile_from(profile, engine=engine)
    wait_for(warn(chosen))
    go_on = resuming(name, profile, engine)
    work = resumed(chosen, name, unsafe=unsafe, go_on=go_on)
    finish(wait_for(work, go_on=go_on), name, json_=json_)


def chosen_spec(
    name: str, cases: list[str] | None, profile: Profile, *, only_available: bool
) -> SweepSpec:
    """Return the spec of a file or preset, narrowed as asked, every name in it known here."""
    from fde_ray.engine.naming import available

    from .setting import checked, names_here, spec_from

    source = spec_from(name)
    spec = narrowed(source.spec, cases)
    if only_available:
        spec = available(spec, names_here(profile))
    return checked(source, spec, profile)


def narrowed(spec: SweepSpec, cases: list[str] | None) -> SweepSpec:
    """Keep only some cases; the sweep gets another name, since it is another sweep."""
    from fde_ray.model.errors import UserError

    if not cases:
        return spec
    unknown = [case for case in cases if case not in spec.cases]
    if unknown:
        raise UserError(f"case {unknown[0]!r} is not in this spec; it has {', '.join(spec.cases)}")
    return spec.evolve(cases=tuple(cases), name=f"{spec.name[:40]}-{'-'.join(cases)[:20]}")


async def _show(profile: Profile, spec: SweepSpec, *, json_: bool) -> None:
    from .comparing import show_comparison
    from .planning import show_plan
    from .setting import system

    async with system(profile) as runtime:
        known = {sweep.name for sweep in await runtime.store.sweeps()}
    if spec.name in known:
        await show_comparison(profile, spec.name, spec, json_=json_)
    else:
        await show_plan(profile, spec, json_=json_)


async def _stored(profile: Profile, spec: SweepSpec) -> bool:
    from fde_ray.engine.controller import Controller

    from .setting import system

    async with system(profile, writing=True) as runtime:
        controller = Controller(runtime)
        new = await controller.submit(spec)
        if new:
            await controller.pause(spec.name)
        return new
