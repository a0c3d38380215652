"""Do the names in a spec exist here? Told before anything is stored, and with their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from fde_ray.cases.probes import list_probes
from fde_ray.cases.records import Case
from fde_ray.model.errors import UserError
from fde_ray.model.specs import SweepSpec, System
from fde_ray.scaffolds import Scaffold

SCRIPTED = "scripted"
"""The scaffold whose model names a probe of the case."""
OFFLINE = "offline/"


class NameFault(NamedTuple):
    """A name that is not known here. `loc` is its path in the spec, as pydantic spells paths."""

    loc: tuple[str | int, ...]
    message: str


class Names(NamedTuple):
    """What is known here. has_model: whether a model's name leads anywhere; None = not asked."""

    cases: Mapping[str, Case]
    scaffold: Callable[[str], Scaffold]
    has_model: Callable[[str], bool] | None = None


def name_faults(spec: SweepSpec, names: Names) -> Iterator[NameFault]:
    """Yield every unknown case, scaffold, probe and model, in the order of the spec."""
    known = ", ".join(sorted(names.cases)) or "none"
    for place, case_id in enumerate(spec.cases):
        if case_id not in names.cases:
            yield NameFault(("cases", place), f"unknown case {case_id!r}; known: {known}")
    for place, system in enumerate(spec.systems):
        yield from _system_faults(spec, names, place, system)
    yield from _model_faults(spec, names)


def _system_faults(
    spec: SweepSpec, names: Names, place: int, system: System
) -> Iterator[NameFault]:
    try:
        names.scaffold(system.scaffold).check(system)
    except UserError as error:
        yield NameFault(("systems", place), str(error))
        return
    if system.scaffold != SCRIPTED:
        return
    probe = system.model.rpartition("/")[2]
    for case_id in spec.cases:
        if case_id in names.cases and probe not in (has := list_probes(names.cases[case_id])):
            message = f"case {case_id} has no probe {probe!r}; known: {', '.join(has)}"
            yield NameFault(("systems", place, "model"), f"system {system.name!r}: {message}")


def _model_faults(spec: SweepSpec, names: Names) -> Iterator[NameFault]:
    if names.has_model is None:
        return
    for loc, model in _models(spec):
        if not model.startswith(OFFLINE) and not names.has_model(model):
            yield NameFault(
                loc,
                f"unknown model {model!r}: no endpoint of the profile matches it, and its"
                " provider is not one of litellm's (write provider/model)",
            )


def _models(spec: SweepSpec) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for place, system in enumerate(spec.systems):
        yield ("systems", place, "model"), system.model
    yield ("customer", "model"), spec.customer.model
    for place, model in enumerate(spec.panel.models):
        yield ("panel", "models", place), model
    for key, models in (("detectors", spec.detectors), ("judges", spec.judges)):
        for place, model in enumerate(models or ()):
            yield (key, place), model


def available(spec: SweepSpec, names: Names) -> SweepSpec:
    """Keep the cases and systems that are known here; UserError when none is left of either."""
    cases = tuple(case_id for case_id in spec.cases if case_id in names.cases)
    if not cases:
        raise UserError(f"none of the cases of {spec.name!r} is here")
    kept = spec.evolve(cases=cases)
    bad = {fault.loc[1] for fault in name_faults(kept, names) if fault.loc[0] == "systems"}
    systems = [s.jsonable() for place, s in enumerate(kept.systems) if place not in bad]
    if not systems:
        scaffolds = ", ".join(sorted({system.scaffold for system in spec.systems}))
        raise UserError(
            f"none of the {len(spec.systems)} systems of {spec.name!r} can run here"
            f" (scaffolds {scaffolds})"
        )
    if len(cases) == len(spec.cases) and len(systems) == len(spec.systems):
        return spec
    # Another set of runs is another sweep.
    return kept.evolve(systems=systems, name=f"{spec.name[:50]}-available")
