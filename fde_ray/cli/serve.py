"""`fde-ray serve …`: one plane as a process of its own."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .setting import ProfileOption

if TYPE_CHECKING:
    from fde_ray.engine.serving import PlaneProcess, Serving
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
    str | None,
    typer.Option(
        "--grace",
        metavar="TIME",
        help="How long what is in flight may take after SIGTERM. A shorter time than the longest "
        "call cuts calls that are paid for. Default: the longest call of the profile (endpoints' "
        "timeout, provider_retries).",
        show_default=False,
    ),
]
ShortGraceOption = Annotated[
    str,
    typer.Option(
        "--grace", metavar="TIME", help="How long what is in flight may take after SIGTERM."
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
CertificateOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="Speak HTTPS with this chain of certificates (PEM). Read again when it changes.",
        show_default=False,
    ),
]
KeyOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-key", metavar="FILE", help="The key of --tls-cert (PEM).", show_default=False
    ),
]


@app.command("run-plane")
def run_plane(
    listen: ListenOption = None,
    admin: AdminOption = None,
    grace: GraceOption = None,
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
    grace: ShortGraceOption = "5m",
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
    grace: GraceOption = None,
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
    grace: ShortGraceOption = "30s",
    notice: NoticeOption = "0s",
    tls_cert: CertificateOption = None,
    tls_key: KeyOption = None,
    profile: ProfileOption = None,
) -> None:
    """Serve people: submit, follow, pause and cancel sweeps. It holds no provider's key.

    Example: fde-ray serve control-plane --listen 0.0.0.0:8080 --admin 0.0.0.0:9090
    """
    tls = (tls_cert, tls_key)
    _serve("control-plane", listen, admin, grace, notice, profile_=profile, tls=tls)


@app.command()
def openapi(
    plane: Annotated[
        str,
        typer.Option(
            "--plane",
            metavar="NAME",
            help="run-plane, ingest, grade-plane, control-plane, or admin: the port beside each.",
        ),
    ] = "control-plane",
) -> None:
    """Print what a plane serves, as an OpenAPI document.

    Example: fde-ray serve openapi --plane run-plane
    """
    from fde_ray.gateway.openapi import APIS, document
    from fde_ray.model.errors import UserError

    from .output import emit_json

    api = next((name for name in APIS if name == plane), None)
    if api is None:
        raise UserError(f"--plane: there is no {plane!r}; choose one of {', '.join(APIS)}")
    emit_json(document(api))


def _serve(
    kind: str,
    listen: str | None,
    admin: str | None,
    grace: str | None,
    notice: str,
    *,
    profile_: Path | None,
    tls: tuple[Path | None, Path | None] = (None, None),
) -> None:
    with _heard_early() as early:
        import uvloop

        chosen, serving = _chosen(kind, listen, admin, grace, notice, profile_=profile_, tls=tls)
        uvloop.run(_served(chosen, serving, early))


@contextmanager
def _heard_early() -> Iterator[list[int]]:
    """Fill a list with requests to end inside the block, until the event loop hears of them.

    What is to be imported takes seconds, and a process that is asked to end then ends in order.
    """
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))
    try:
        yield heard
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _chosen(
    kind: str,
    listen: str | None,
    admin: str | None,
    grace: str | None,
    notice: str,
    *,
    profile_: Path | None,
    tls: tuple[Path | None, Path | None],
) -> tuple[Profile, Serving]:
    import os

    from fde_ray.engine.home import home_of
    from fde_ray.engine.serving import PlaneKind, Serving, default_addresses, grace_doubt
    from fde_ray.gateway.tls import TlsFiles
    from fde_ray.model.errors import UserError

    from .output import note
    from .setting import profile_from

    certificate, key = tls
    if (certificate is None) != (key is None):
        raise UserError("--tls-cert and --tls-key go together")
    profile, of_kind = profile_from(profile_), PlaneKind(kind)
    here = default_addresses(of_kind, home_of(profile, os.environ))
    serving = Serving(
        of_kind,
        listen or here[0],
        admin or here[1],
        None if grace is None else _seconds("--grace", grace),
        _seconds("--notice", notice),
        None if certificate is None or key is None else TlsFiles(certificate, key),
    )
    doubt = grace_doubt(serving, profile)
    if doubt is not None:
        note(f"--grace {grace} is shorter than the longest call, {doubt}; leave it out to fit")
    return profile, serving


async def _served(profile: Profile, serving: Serving, early: list[int]) -> None:
    import asyncio

    from fde_ray.engine.serving import served_until

    from .logfile import logged_to_stderr

    end, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    if early:
        end.set()
    with logged_to_stderr():
        await served_until(end, profile, serving, _tell)


def _tell(process: PlaneProcess) -> None:
    from .output import emit_json

    bound, admin = process.addresses or ("", "")
    kind, grace = process.kind.value, process.ends_within_s
    emit_json({"serving": kind, "listen": bound, "admin": admin, "ends_within_s": grace})
    sys.stdout.flush()


def _seconds(option: str, text: str) -> float:
    from fde_ray.model.errors import UserError
    from fde_ray.model.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from error
