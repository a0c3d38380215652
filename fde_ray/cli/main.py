"""The `fde-ray` command. Each noun is a small module; heavy libraries are imported when used."""

from __future__ import annotations

import os
import sys

import typer

from . import case, demo, doctor, report, results, run, sweep
from .output import complain

app = typer.Typer(
    name="fde-ray",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Runs FDE-Bench sweeps: agents that ask a simulated customer, work in a sandbox, and are "
    "graded by a hidden evaluator.\n\nStart with [bold]fde-ray demo[/bold]: no key, no network.",
)
app.command(name="demo")(demo.demo)
app.add_typer(sweep.app, name="sweep")
app.add_typer(run.app, name="run")
app.add_typer(results.app, name="results")
app.command(name="report")(report.report)
app.command(name="cost")(report.cost)
app.add_typer(case.app, name="case")
app.command(name="doctor")(doctor.doctor)


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        from fde_ray import __version__

        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; a person's mistake is one line and exit code 2."""
    # Read by litellm at import, wherever that happens first.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    from click.exceptions import Abort, ClickException

    from fde_ray.model.errors import FdeRayError, UserError

    try:
        code = app(standalone_mode=False)
    except ClickException as error:
        error.show()
        code = error.exit_code
    except UserError as error:
        code = complain(str(error), error.exit_code)
    except FdeRayError as error:
        code = complain(str(error), 1)
    except (Abort, KeyboardInterrupt):
        code = complain("interrupted; the same command goes on where it stopped", 130)
    except BrokenPipeError:
        code = 141
    sys.exit(code or 0)
