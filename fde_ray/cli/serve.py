"""`fde-ray serve …`: one plane as a process of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from .setting import ProfileOption

if TYPE_CHECKING:
    from pathlib import Path

    from fde_ray.engine.serving import Serving
    from fde_ray.model.profile import Profile

app = typer.Typer(
    no_args_is_help=True,
    help="Serve one plane until SIGTERM, beside any number of others on the same stores.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

ListenOption = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="ADDRESS",
        help="Where pods reach it: host:port, or unix:/path. Default: a socket in the state "
        "folder.",
        show_default=False,
    ),
]
AdminOption = Annotated[
    str | None,
    typer.Option(
        "--admin",
        metavar="ADDRESS",
        help="Where /readyz, /livez and /metrics are, which no pod may reach. Default: a socket "
        "in the state folder.",
        show_default=False,
    ),
]
GraceOption = Annotated[
    str,
    typer.Option(
        "--grace",
        metavar="TIME",
        help="How long calls in flight may take after SIGTERM. A shorter time than the longest "
        "call cuts calls that are paid for.",
    ),
]
NoticeOption = Annotated[
    str,
    typer.Option(
        "--notice",
        metavar="TIME",
        help="How long it goes on as before after it has said that it is not ready.",
    ),
]


@app.command("run-plane")
def run_plane(
    listen: ListenOption = None,
    admin: AdminOption = None,
    grace: GraceOption = "30m",
    notice: NoticeOption = "0s",
    profile: ProfileOption = None,
) -> None:
    """Serve solving runs: model calls, turns, heartbeats. It alone holds providers' keys.

    Example: fde-ray serve run-plane --listen 0.0.0.0:8080 --admin 0.0.0.0:9090 --notice 5s
    """
    _serve("run-plane", listen, admin, grace, notice, profile_=profile)


@app.command()
def ingest(
    listen: ListenOption = None,
    admin: AdminOption = None,
    grace: GraceOption = "5m",
    notice: NoticeOption = "0s",
    profile: ProfileOption = None,
) -> None:
    """Serve archives to and from solving runs, apart from their model calls.

    The profile names its address as `planes.ingest`; run-planes tell it to their shims.

    Example: fde-ray serve ingest --listen 0.0.0.0:8080 --admin 0.0.0.0:9090
    """
    _serve("ingest", listen, admin, grace, notice, profile_=profile)


@app.command("grade-plane")
def grade_plane(
    listen: ListenOption = None,
    admin: AdminOption = None,
    grace: GraceOption = "30m",
    notice: NoticeOption = "0s",
    profile: ProfileOption = None,
) -> None:
    """Serve extraction tries, and run the evaluator for them.

    Example: fde-ray serve grade-plane --listen 0.0.0.0:8080 --admin 0.0.0.0:9090
    """
    _serve("grade-plane", listen, admin, grace, notice, profile_=profile)


@app.command("control-plane")
def control_plane(
    listen: ListenOption = None,
    admin: AdminOption = None,
    grace: GraceOption = "30s",
    notice: NoticeOption = "0s",
    profile: ProfileOption = None,
) -> None:
    """Serve people: submit, follow, pause and cancel sweeps. It holds no provider's key.

    Example: fde-ray serve control-plane --listen 0.0.0.0:8080 --admin 0.0.0.0:9090
    """
    _serve("control-plane", listen, admin, grace, notice, profile_=profile)


def _serve(
    kind: str,
    listen: str | None,
    admin: str | None,
    grace: str,
    notice: str,
    *,
    profile_: Path | None,
) -> None:
    import os

    import uvloop

    from fde_ray.engine.home import home_of
    from fde_ray.engine.serving import PlaneKind, Serving, default_addresses

    from .setting import profile_from

    chosen = profile_from(profile_)
    of_kind = PlaneKind(kind)
    here = default_addresses(of_kind, home_of(chosen, os.environ))
    serving = Serving(
        of_kind,
        listen or here[0],
        admin or here[1],
        _seconds("--grace", grace),
        _seconds("--notice", notice),
    )
    uvloop.run(_served(chosen, serving))


async def _served(profile: Profile, serving: Serving) -> None:
    import asyncio
    import signal

    from fde_ray.engine.serving import opened_process

    from .logfile import logged_to_stderr
    from .output import emit_json

    def tell() -> None:
        bound, admin = process.addresses or ("", "")
        emit_json({"serving": serving.kind.value, "listen": bound, "admin": admin})
        sys.stdout.flush()

    end, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    with logged_to_stderr():
        async with opened_process(profile, serving) as process:
            await process.run(end, tell)


def _seconds(option: str, text: str) -> float:
    from fde_ray.model.errors import UserError
    from fde_ray.model.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from error
