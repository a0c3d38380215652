"""The `fde-ray` command. Each noun is a small module; heavy libraries are imported when used."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from . import (
    case,
    cluster,
    comparing,
    cost,
    demo,
    doctor,
    prices,
    remote,
    report,
    results,
    run,
    serve,
    standing,
    steering,
    store,
    sweep,
    user,
)
from .exits import ended
from .output import readable

app = typer.Typer(
    name="fde-ray",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run FDE-Bench sweeps: agents ask a simulated customer, work in a sandbox, and are "
    "graded by a hidden evaluator.\n\nStart with: fde-ray demo (no key, no network).",
    epilog="Data goes to stdout, progress and hints to stderr. Exit code: 0 all done, 1 not all "
    "done, 2 something to mend, 130 interrupted.",
)
app.command(name="demo")(demo.demo)
sweep.app.command(name="diff")(comparing.diff)
sweep.app.command(name="status")(standing.status)
sweep.app.command(name="pause")(steering.pause)
sweep.app.command(name="cancel")(steering.cancel)
sweep.app.command(name="set")(steering.set_policy)
app.add_typer(sweep.app, name="sweep")
app.add_typer(run.app, name="run")
app.add_typer(results.app, name="results")
app.command(name="report")(report.report)
app.command(name="cost")(cost.cost)
app.add_typer(prices.app, name="prices")
app.add_typer(case.app, name="case")
app.add_typer(store.app, name="store")
app.add_typer(serve.app, name="serve")
app.add_typer(cluster.app, name="cluster")
app.add_typer(user.app, name="user")
app.command(name="audit")(user.audit)
app.add_typer(remote.app, name="remote")
app.command(name="doctor")(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        from fde_ray import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    pass


def exit_code(arguments: Sequence[str]) -> int:
    """Carry out one command line; whatever happens, it ends with an exit code."""
    return ended(lambda: app(list(arguments), prog_name="fde-ray", standalone_mode=False))


def main() -> None:
    """Run the command line and exit."""
    # Read by litellm at import, wherever that happens first.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    readable()
    # A request to end is an interruption: leases are given back, and the way on is told. Only what
    # serves is meant to be ended so.
    if sys.argv[1:2] != ["serve"]:
        signal.signal(signal.SIGTERM, _interrupted)
    sys.exit(exit_code(sys.argv[1:]))


def _interrupted(*_: object) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A background job of a script ignores SIGINT; SIGTERM still means it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)
