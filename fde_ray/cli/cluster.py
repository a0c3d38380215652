"""`fde-ray cluster …`: what a Kubernetes needs before runs can go into pods there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .setting import ProfileOption

if TYPE_CHECKING:
    from fde_ray.model.profile import Profile
    from fde_ray.sandbox.kubernetes.fence import FenceSettings
    from fde_ray.sandbox.kubernetes.fence.settings import Peer

app = typer.Typer(
    no_args_is_help=True,
    help="The Kubernetes that holds run pods.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_PEER = "As ip:port, network/bits:port or namespace/label=value:port (pods, by their own port)."
_UNLIKE = {"memory_gib": "--memory", "images": "--image"}
"""Field of a fence -> its option, where their names differ."""


@app.callback()
def _root() -> None:
    pass


def _peers(help_: str) -> Any:
    return typer.Option(metavar="ADDRESS", help=help_, show_default=False)


@app.command()
def render(
    profile: ProfileOption = None,
    namespace: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of run pods, and nothing else.", show_default=False),
    ] = None,
    run_plane: Annotated[
        list[str] | None, _peers(f"What solving pods reach; more than one may be given. {_PEER}")
    ] = None,
    ingest: Annotated[
        list[str] | None, _peers("Where they send archives, if not to the run-plane.")
    ] = None,
    grade_plane: Annotated[
        list[str] | None, _peers("What extraction, scoring and exec pods reach.")
    ] = None,
    runtime_class: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The only runtime that pods may ask for; default: gvisor.",
            show_default=False,
        ),
    ] = None,
    pods: Annotated[int, typer.Option(metavar="N", help="Run pods at once.")] = 100,
    grading_pods: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="How many of them are kept for grading; default: a quarter.",
            show_default=False,
        ),
    ] = None,
    cpu: Annotated[
        int | None,
        typer.Option(metavar="CORES", help="Cores of all pods together.", show_default=False),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(metavar="GIB", help="Memory of all pods together.", show_default=False),
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PREFIX",
            help="How image references of pods begin; default: the profile's image, else any.",
            show_default=False,
        ),
    ] = None,
    user_namespaces: Annotated[
        bool, typer.Option("--user-namespaces", help="Take only pods with hostUsers: false.")
    ] = False,
    engine_namespace: Annotated[
        str, typer.Option(metavar="NAME", help="Of the account that drives runs.")
    ] = "fde-ray",
    engine_account: Annotated[
        str, typer.Option(metavar="NAME", help="That account.")
    ] = "fde-ray-engine",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write a file for each object there instead of printing.",
            show_default=False,
        ),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print a List as JSON.")] = False,
) -> None:
    """Print the objects that fence run pods in; asks no cluster and changes none.

    Namespace, quotas with a reserve for grading, priority classes that never preempt, network
    policies, the account that drives runs, and a policy that refuses every weaker pod. What is not
    given here comes from the profile: its planes and its sandbox.kubernetes block. A reserve that
    does not hold the pods of concurrency.gradings grades is refused.

    Examples:

      fde-ray cluster render --run-plane 10.0.0.7:8080 --grade-plane 10.0.0.7:8081

      fde-ray cluster render --profile profile.yaml --pods 2000 --out fence

      kubectl apply --server-side -f fence
    """
    from fde_ray.model.wording import counted
    from fde_ray.sandbox.kubernetes.fence import as_list, as_yaml, fence_objects

    from .output import emit_json, note
    from .setting import profile_from

    read = profile_from(profile)
    pairs = {"--run-plane": run_plane, "--ingest": ingest, "--grade-plane": grade_plane}
    settings = _settings(
        read,
        pairs,
        namespace=namespace,
        runtime_class=runtime_class,
        pods=pods,
        grading_pods=grading_pods,
        cpu=cpu,
        memory_gib=memory,
        images=tuple(image) if image else None,
        user_namespaces=user_namespaces or None,
        engine_namespace=engine_namespace,
        engine_account=engine_account,
    )
    held = _grades_held(settings, read)
    objects = fence_objects(settings)
    if out is not None:
        _write(objects, out)
    elif json_:
        emit_json(as_list(objects))
    else:
        typer.echo(as_yaml(objects), nl=False)
    if read.concurrency.gradings is None:
        grades = counted(held, "grade")
        note(f"the reserve holds {grades} at once; set concurrency.gradings to no more")


def _settings(profile: Profile, peers: dict[str, list[str] | None], **given: Any) -> FenceSettings:
    from pydantic import ValidationError

    from fde_ray.model.errors import UserError, shortened
    from fde_ray.sandbox.kubernetes.fence import FenceSettings

    chosen = {name: value for name, value in given.items() if value is not None}
    try:
        return FenceSettings(
            **_from_profile(profile) | chosen,
            run_plane=_planes(peers, "--run-plane", profile.planes.run, is_needed=True),
            ingest=_planes(peers, "--ingest", profile.planes.ingest),
            grade_plane=_planes(peers, "--grade-plane", profile.planes.grade, is_needed=True),
        )
    except ValidationError as error:
        first = error.errors()[0]
        told = first["msg"].removeprefix("Value error, ")
        if first["loc"]:
            field = str(first["loc"][0])
            told = f"{_UNLIKE.get(field) or '--' + field.replace('_', '-')}: {told}"
        raise UserError(shortened(told)) from error


def _grades_held(settings: FenceSettings, profile: Profile) -> int:
    """Return how many grades have their pods at once; UserError when the profile has more in work,
    which would wait for each other's places."""
    from fde_ray.model.errors import UserError
    from fde_ray.sandbox.kubernetes.fence import grades_held, reserve_of, shortage

    from .gradings import grading_of_profile

    grading, reserve = grading_of_profile(profile, at_once=1), reserve_of(settings)
    if (missing := shortage(reserve, grading)) is not None:
        raise UserError(f"{missing.detail}; {missing.remedy}")
    return grades_held(reserve, grading)


def _from_profile(profile: Profile) -> dict[str, Any]:
    found = profile.sandbox.kubernetes
    if found is None:
        return {}
    return {
        "namespace": found.namespace,
        "runtime_class": found.runtime_class,
        "images": (found.image,),
        "user_namespaces": found.user_namespaces,
    }


def _planes(
    peers: dict[str, list[str] | None],
    option: str,
    address: str | None,
    *,
    is_needed: bool = False,
) -> tuple[Peer, ...]:
    """Return the peers of an option, else the one of the profile."""
    from fde_ray.model.errors import UserError
    from fde_ray.sandbox.kubernetes.checking import pod_address
    from fde_ray.sandbox.kubernetes.fence import parsed_peer

    if given := peers[option]:
        return tuple(parsed_peer(each) for each in given)
    plane = option.removeprefix("--").removesuffix("-plane")
    if address is not None:
        return (parsed_peer(pod_address(f"planes.{plane}", address)),)
    if is_needed:
        raise UserError(
            f"no network policy without it: give {option}, or planes.{plane} in the profile"
        )
    return ()


def _write(objects: list[dict[str, Any]], folder: Path) -> None:
    from fde_ray.sandbox.kubernetes.fence import as_files

    from .output import note, say

    folder.mkdir(parents=True, exist_ok=True)
    for name, text in as_files(objects):
        (folder / name).write_text(text, encoding="utf-8")
        say(str(folder / name))
    note(f"next: kubectl apply --server-side -f {folder}")
