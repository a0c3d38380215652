"""`fde-ray demo`: a small sweep through the whole pipeline, without any model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .setting import HtmlOption, JsonOption, ProfileOption, UnsafeOption

if TYPE_CHECKING:
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
    from .running import carried_out, finish, resuming
    from .setting import profile_from, spec_from, wait_for
    from .sweep import show_plan

    spec = named(spec_from("demo").evolve(repeats=repeats), fresh=fresh)
    chosen = profile_from(profile)
    if dry_run:
        wait_for(show_plan(chosen, spec, json_=json_))
        return
    work = carried_out(chosen, spec, unsafe=unsafe, html=html)
    finish(wait_for(work, go_on=resuming(spec.name, profile)), spec.name, json_=json_)


def named(spec: SweepSpec, *, fresh: bool) -> SweepSpec:
    """Name the sweep after its content, so that another version of it is another sweep."""
    import time

    from fde_ray.model.base import digest
    from fde_ray.scaffolds import scaffold

    if fresh:
        spec = spec.evolve(series=f"fresh-{int(time.time())}")
    locks = sorted({scaffold(system.scaffold).lock_hash for system in spec.systems})
    return spec.evolve(name=f"demo-{digest([spec.jsonable(), locks])[:8]}")
