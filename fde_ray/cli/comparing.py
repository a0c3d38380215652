"""`fde-ray sweep diff`, and putting a changed spec in the place of the stored one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .setting import JsonOption, NameArgument, ProfileOption
from .sweep import AvailableOption, CaseOption, SpecArgument, chosen_spec

if TYPE_CHECKING:
    from fde_ray.engine.comparison import Comparison
    from fde_ray.model.profile import Profile
    from fde_ray.model.specs import SweepSpec
    from fde_ray.store.runs.versions import Replaced


def diff(
    name: NameArgument,
    spec: SpecArgument,
    case: CaseOption = None,
    available: AvailableOption = False,
    profile: ProfileOption = None,
    json_: JsonOption = False,
) -> None:
    """Show what a changed spec reuses, grades anew, runs anew and drops; nothing is stored.

    A change of panel, judges, evaluator or gt grades anew and runs no agent again. Results of the
    former spec stay. `sweep submit SPEC --replace` carries it out.

    Examples:

      fde-ray sweep diff my-sweep changed.yaml

      fde-ray sweep diff my-sweep changed.yaml --json
    """
    from .setting import profile_from, wait_for

    chosen = profile_from(profile)
    document = chosen_spec(spec, case, chosen, only_available=available)
    wait_for(show_comparison(chosen, name, document, json_=json_))


async def show_comparison(profile: Profile, name: str, spec: SweepSpec, *, json_: bool) -> None:
    from fde_ray.engine.comparison import Kind
    from fde_ray.engine.submission import Submission

    from .output import emit_json, note, program, say, table
    from .setting import system

    async with system(profile) as runtime:
        found = await Submission(runtime).compare(name, spec)
    if json_:
        emit_json(as_json(name, found))
        return
    table(
        ["", "runs", "with result", "because of"],
        [
            [kind.value, str(runs), str(finished), ", ".join(reasons)]
            for kind, reasons, runs, finished in found.groups()
        ],
    )
    say(", ".join(f"{kind.value} {found.count(kind)}" for kind in Kind))
    if found.is_same:
        note(f"sweep {name} has these runs and grades already")
    elif spec.name != name:
        note(
            f"nothing is stored; this spec is named {spec.name!r}: to change {name}, write"
            f" `name: {name}` in it, then {program()} sweep submit with it and --replace"
        )
    else:
        note(f"nothing is stored; to do it: {program()} sweep submit, with this spec and --replace")


async def replaced(profile: Profile, spec: SweepSpec) -> Replaced:
    """Put the spec in the place of the stored one, and tell what that kept."""
    from fde_ray.engine.submission import Submission
    from fde_ray.model.wording import counted

    from .output import note
    from .setting import system

    async with system(profile, writing=True) as runtime:
        done = await Submission(runtime).replace(spec)
    if done.changed:
        kept = counted(done.kept, "grade")
        note(
            f"sweep {spec.name} has its new spec: {kept} kept, {done.added} to make or"
            f" shared, {done.released} let go"
        )
    else:
        note(f"sweep {spec.name} has this spec already")
    return done


def as_json(name: str, found: Comparison) -> dict[str, Any]:
    from fde_ray.engine.comparison import Kind

    return {
        "sweep": name,
        "same": found.is_same,
        "counts": {kind.value: found.count(kind) for kind in Kind},
        "groups": [
            {"kind": kind.value, "reasons": list(reasons), "runs": runs, "with_result": finished}
            for kind, reasons, runs, finished in found.groups()
        ],
        "runs": [
            {
                "kind": one.kind.value,
                "reasons": list(one.reasons),
                "case": one.case_id,
                "condition": one.condition,
                "system": one.system,
                "repeat": one.repeat,
                "run_id": one.run_id,
                "grade_id": one.grade_id,
                "has_result": one.finished,
            }
            for one in found.changes
        ],
    }
