"""`fde-ray demo`: a small sweep through the whole pipeline, without any model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .setting import EngineOption, HtmlOption, JsonOption, ProfileOption, UnsafeOption

if TYPE_CHECKING:
    from fde_ray.model.profile import Profile
    from fde_ray.model.specs import SweepSpec


def demo(
    profile: ProfileOption = None,
    json_: JsonOption = False,
    html: HtmlOption = None,
    repeats: Annotated[
        int, typer.Option(min=1, max=20, metavar="N", help="Repeats per case and system.")
    ] = 1,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run everything again, as a new campaign.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run, and stop.")
    ] = False,
    engine: EngineOption = None,
    unsafe: UnsafeOption = False,
) -> None:
    """Run a small sweep end to end on this machine.

    It needs no key, no cluster and no network. Scripted systems ask a simulated customer and
    deliver prepared solutions of two cases; the offline provider plays customer, extractors and
    judges. Killed and started again, it goes on where it stopped; finished runs are never
    repeated.

    Examples:

      fde-ray demo

      fde-ray demo --json > demo.json
    """
    from .planning import show_plan
    from .running import carried_out, finish, resuming
    from .setting import preset, profile_from, wait_for

    chosen = profile_from(profile, engine=engine)
    spec = named(preset("demo").evolve(repeats=repeats), chosen, fresh=fresh)
    if dry_run:
        wait_for(show_plan(chosen, spec, json_=json_))
        return
    go_on = resuming(spec.name, profile, engine)
    work = carried_out(chosen, spec, unsafe=unsafe, html=html, go_on=go_on)
    finish(wait_for(work, go_on=go_on), spec.name, json_=json_)


def named(spec: SweepSpec, profile: Profile, *, fresh: bool) -> SweepSpec:
    """Name the sweep after all that it rests upon, so that after a change it is another sweep."""
    import time

    from fde_ray.engine.planning import Planner, plan_sweep
    from fde_ray.engine.runtime import cases_of
    from fde_ray.engine.submission import resolved
    from fde_ray.model.base import digest
    from fde_ray.protocol.packs import builtin_pack
    from fde_ray.scaffolds import scaffold

    if fresh:
        spec = spec.evolve(series=f"fresh-{int(time.time())}")
    plans = plan_sweep(spec, Planner(cases_of(profile), builtin_pack(), scaffold))
    return spec.evolve(name=f"demo-{digest(resolved(spec, plans))[:8]}")
