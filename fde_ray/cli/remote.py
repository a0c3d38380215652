"""`fde-ray remote …`: ask a control-plane instead of the stores, with a token and no profile."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from .setting import JsonOption

if TYPE_CHECKING:
    import httpx

app = typer.Typer(
    no_args_is_help=True,
    help="Ask a control-plane: submit, follow, pause, cancel and delete sweeps. The token of "
    "`fde-ray user add` is read from FDE_RAY_TOKEN.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        envvar="FDE_RAY_SERVER",
        help="Root of the control-plane: http(s)://host:port, or unix:/path.",
        show_default=False,
    ),
]
NameArgument = Annotated[str, typer.Argument(metavar="SWEEP", help="Name of a submitted sweep.")]
TIMEOUT_S = 60.0


@app.command()
def submit(
    spec: Annotated[
        str, typer.Argument(metavar="SPEC", help="A SweepSpec (YAML file), or a preset.")
    ],
    server: ServerOption = None,
    json_: JsonOption = False,
) -> None:
    """Have a sweep stored; whoever supervises there runs it. The same spec again changes nothing.

    Example: fde-ray remote submit my_sweep.yaml --server https://fde-ray.example
    """
    from .output import emit_json, note
    from .setting import spec_from

    source = spec_from(spec)
    text = source.text.encode() if isinstance(source.text, str) else source.text
    said = _asked(server, "POST", "/v1/sweeps", content=text)
    if json_:
        emit_json(said)
        return
    what = "is stored" if said["new"] else "was stored before; it is left as it is"
    note(f"sweep {said['name']} {what}")


@app.command()
def status(
    name: Annotated[
        str | None,
        typer.Argument(metavar="SWEEP", help="A sweep; none = all of them.", show_default=False),
    ] = None,
    server: ServerOption = None,
    json_: JsonOption = False,
) -> None:
    """Show how far sweeps are.

    Example: fde-ray remote status my-sweep
    """
    from .output import emit_json, note, table

    if name is None:
        rows = _asked(server, "GET", "/v1/sweeps")["sweeps"]
        if json_:
            emit_json(rows)
            return
        table(["sweep", "state", "owner"], [[r["name"], _state(r), r["owner"]] for r in rows])
        return
    said = _asked(server, "GET", f"/v1/sweeps/{_quoted(name)}")
    phases = Counter(run["phase"] for run in said["runs"])
    state = {key: said[key] for key in ("state", "finished")}
    row = {"sweep": said["name"], **state, "phases": dict(phases)}
    if json_:
        emit_json(row | {"planned": len(said["runs"]), "notices": said["notices"]})
        return
    shown = " ".join(f"{phase}:{count}" for phase, count in sorted(phases.items()))
    header = ["sweep", "state", "runs", "phases"]
    table(header, [[said["name"], _state(said), str(len(said["runs"])), shown]])
    for notice in said["notices"]:
        note(notice)


@app.command()
def pause(name: NameArgument, server: ServerOption = None) -> None:
    """Admit no further run of your sweep; live runs finish.

    Example: fde-ray remote pause my-sweep
    """
    _change("pause", name, server)


@app.command()
def resume(name: NameArgument, server: ServerOption = None) -> None:
    """Go on with your sweep.

    Example: fde-ray remote resume my-sweep
    """
    _change("resume", name, server)


@app.command()
def cancel(name: NameArgument, server: ServerOption = None) -> None:
    """Stop the runs of your sweep that no other sweep wants. Finished results stay.

    Example: fde-ray remote cancel my-sweep
    """
    _change("cancel", name, server)


@app.command()
def delete(name: NameArgument, server: ServerOption = None) -> None:
    """Forget your sweep once it is cancelled and over. Results of its runs stay in the store.

    Example: fde-ray remote delete my-sweep
    """
    from .output import note

    said = _asked(server, "DELETE", f"/v1/sweeps/{_quoted(name)}")
    note(f"sweep {said['name']} is deleted")


@app.command()
def results(name: NameArgument, server: ServerOption = None, json_: JsonOption = False) -> None:
    """List the results of a sweep that are there.

    Example: fde-ray remote results my-sweep --json > results.json
    """
    from .output import emit_json, table

    rows = _asked(server, "GET", "/v1/results", params={"sweep": name})["results"]
    if json_:
        emit_json(rows)
        return
    table(
        ["run", "case", "condition", "system", "repeat", "grade", "score"],
        [
            [
                str(row["run_id"])[:12],
                *(str(row[key]) for key in ("case_id", "condition", "system", "repeat", "grade")),
                _score(row),
            ]
            for row in rows
        ],
    )


def _score(row: dict[str, Any]) -> str:
    """Return the score as it counts: a run that a budget cut is compared with none."""
    from fde_ray.model.result import RunResult

    if (cut := RunResult.model_validate(row).budget_cut) is not None:
        return f"not compared: {cut.value}"
    return "-" if row["score"] is None else f"{row['score']:.4f}"


def _state(sweep: dict[str, Any]) -> str:
    return "finished" if sweep["finished"] else str(sweep["state"])


def _change(action: str, name: str, server: str | None) -> None:
    from .output import note

    said = _asked(server, "POST", f"/v1/sweeps/{_quoted(name)}/{action}")
    note(f"sweep {said['name']}: {action} noted")


def _asked(server: str | None, method: str, path: str, **more: Any) -> Any:
    """Return what the control-plane says; UserError with its own reason when it refuses."""
    import httpx

    from fde_ray.model.errors import StoreError, UserError

    token = os.environ.get("FDE_RAY_TOKEN", "")
    if not token:
        raise UserError("set FDE_RAY_TOKEN to a token of `fde-ray user add`")
    try:
        with _client(server, token) as client:
            reply = client.request(method, path, **more)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise StoreError(f"{server} does not answer: {type(error).__name__}") from error
    try:
        said = reply.json()
        if reply.status_code >= 400:
            reason = f"{server} says: {said['error']['reason']}{_hint(said['error'])}"
            raise (UserError if reply.status_code < 500 else StoreError)(reason)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{server} is no control-plane (HTTP {reply.status_code})") from error
    return said


def _hint(error: dict[str, Any]) -> str:
    return "; see `fde-ray remote status`" if error.get("code") == "unknown" else ""


def _client(server: str | None, token: str) -> httpx.Client:
    import httpx

    from fde_ray.model.errors import StoreError, UserError

    if not server:
        raise UserError("name the control-plane: --server, or FDE_RAY_SERVER")
    headers = {"authorization": f"Bearer {token}"}
    if server.startswith("unix:"):
        path = server.removeprefix("unix:")
        if not os.path.exists(path):
            raise StoreError(f"{server} does not answer: there is no such socket")
        transport = httpx.HTTPTransport(uds=path)
        return httpx.Client(
            transport=transport, base_url="http://control", headers=headers, timeout=TIMEOUT_S
        )
    if not server.startswith(("http://", "https://")):
        raise UserError(f"{server} must begin with http(s):// or unix:")
    return httpx.Client(base_url=server, headers=headers, timeout=TIMEOUT_S)


def _quoted(name: str) -> str:
    return quote(name, safe="")
