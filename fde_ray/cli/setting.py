"""Shared options of commands, and how a command gets a profile, a spec and a running system."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

if TYPE_CHECKING:
    from fde_ray.engine.naming import Names
    from fde_ray.engine.runtime import Runtime
    from fde_ray.model.profile import Profile
    from fde_ray.model.specs import SweepSpec

T = TypeVar("T")

ProfileOption = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        envvar="FDE_RAY_PROFILE",
        help="Where and how to run (YAML): endpoints, sandbox, state folder.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
HtmlOption = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Where to write the report page; default: in the state folder.",
        show_default=False,
    ),
]
NameArgument = Annotated[str, typer.Argument(metavar="SWEEP", help="Name of a submitted sweep.")]
UnsafeOption = Annotated[
    bool,
    typer.Option(
        "--unsafe-no-sandbox",
        help="Run agents WITHOUT any isolation; recorded in every result.",
    ),
]


EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="inline|ray",
        help="inline: all in this process. ray: supervisors and pools as Ray actors, on a Ray of "
        "its own or the one at RAY_ADDRESS. Default: as the profile says, else inline.",
        show_default=False,
    ),
]


def profile_from(path: Path | None, *, engine: str | None = None) -> Profile:
    """Return the profile of a file, with the engine that the command line asks for."""
    from fde_ray.model.documents import parse_document
    from fde_ray.model.errors import UserError
    from fde_ray.model.profile import Profile

    if engine not in (None, "inline", "ray"):
        raise UserError(f"there is no engine {engine!r}; --engine takes inline or ray")
    found = Profile()
    if path is not None:
        found = parse_document(document(path), Profile, path=str(path))
    return found if engine is None else found.evolve(engine=engine)


def document(path: Path) -> bytes:
    from fde_ray.model.documents import MAX_BYTES
    from fde_ray.model.errors import UserError

    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)  # one too many is refused with a sentence
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def preset(name: str) -> SweepSpec:
    from fde_ray.model.documents import parse_document
    from fde_ray.model.specs import SweepSpec
    from fde_ray.presets import preset_text

    return parse_document(preset_text(name), SweepSpec, path=f"preset {name}")


class SpecSource(NamedTuple):
    """A spec with the text that it was read from."""

    spec: SweepSpec
    text: str | bytes
    path: str


def spec_from(name: str) -> SpecSource:
    """Return the spec of a YAML file, or of a preset of that name."""
    from fde_ray.model.documents import parse_document
    from fde_ray.model.errors import UserError
    from fde_ray.model.specs import SweepSpec
    from fde_ray.presets import NAMES, preset_text

    path = Path(name)
    if path.is_file():
        text = document(path)
        return SpecSource(parse_document(text, SweepSpec, path=name), text, name)
    if name in NAMES:
        return SpecSource(preset(name), preset_text(name), f"preset {name}")
    if path.is_dir():
        raise UserError(f"{name} is a folder; give the YAML file of a SweepSpec")
    known = ", ".join(NAMES)
    raise UserError(f"there is no file {name!r}, and no preset of that name; presets: {known}")


def checked(source: SpecSource, spec: SweepSpec, profile: Profile) -> SweepSpec:
    """Return `spec`, a part of the source's; SpecError with the line of the first unknown name."""
    from fde_ray.engine.naming import name_faults
    from fde_ray.model.documents import line_of
    from fde_ray.model.errors import SpecError

    for fault in name_faults(spec, names_here(profile)):
        line = line_of(source.text, in_source(source.spec, spec, fault.loc))
        hint = "; --available leaves out what is not here" if fault.loc[0] in _PARTS else ""
        raise SpecError(fault.message + hint, path=source.path, line=line)
    return spec


_PARTS = ("cases", "systems")


def names_here(profile: Profile) -> Names:
    from fde_ray.engine.naming import Names
    from fde_ray.engine.runtime import cases_of
    from fde_ray.llm.router import leads_anywhere
    from fde_ray.scaffolds import scaffold

    return Names(
        cases_of(profile), scaffold, lambda model: leads_anywhere(model, profile.endpoints)
    )


def in_source(
    whole: SweepSpec, part: SweepSpec, loc: tuple[str | int, ...]
) -> tuple[str | int, ...]:
    """Return the place in the whole spec of a place in one that keeps some cases and systems."""
    if loc[0] == "cases":
        return ("cases", whole.cases.index(part.cases[int(loc[1])]))
    if loc[0] == "systems":
        names = [system.name for system in whole.systems]
        return ("systems", names.index(part.systems[int(loc[1])].name), *loc[2:])
    return loc


@asynccontextmanager
async def system(
    profile: Profile, *, unsafe: bool = False, writing: bool = False, driving: bool = False
) -> AsyncIterator[Runtime]:
    """Open what a command works with. writing: whether it may write to the object store. driving:
    whether it starts sessions or looks at them."""
    from fde_ray.engine.runtime import opened_runtime

    from .logfile import logged_to

    async with opened_runtime(profile, unsafe=unsafe, writing=writing, driving=driving) as runtime:
        with logged_to(runtime.home.root / "fde-ray.log"):
            yield runtime


def wait_for(work: Coroutine[Any, Any, T], *, go_on: str = "") -> T:
    """Carry out `work`. go_on: the command that goes on with it after an interruption."""
    import asyncio

    from .exits import Interrupted
    from .waiting import waits_told

    try:
        with waits_told():
            return asyncio.run(work)
    except KeyboardInterrupt:
        raise Interrupted(go_on) from None
