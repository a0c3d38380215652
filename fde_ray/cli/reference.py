"""Writes the reference page of the commands: `python -m fde_ray.cli.reference > docs/cli.md`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from .main import app

WIDTH = 98
_HEAD = """\
# Commands

Made by `python -m fde_ray.cli.reference > docs/cli.md` from the help texts; do not edit.
First steps: [quickstart.md](quickstart.md). Numbers of reports: [metrics.md](metrics.md).

## What all commands share

- **Data on stdout, everything else on stderr**: progress, hints and errors never mix with `--json`.
- **`--json`** prints one JSON document. Text of agents and models is shown with its control
  characters spelled out, on the terminal and in JSON.
- **Exit codes**: 0 all that was asked for is done; 1 not all of it (a run without a result, a
  failed check, a store that cannot be reached); 2 something that you can mend (the line says
  what); 130 interrupted. No command ends in a traceback: what nobody foresaw is written to
  `last-error.txt` in the state folder.
- **State** lies in `$FDE_RAY_HOME`, else `~/.fde-ray`; `home:` of a profile comes first. One
  process at a time runs sweeps on a state folder; reading commands may run beside it. Events are
  logged in `fde-ray.log` there.
- **`--profile FILE`** or `$FDE_RAY_PROFILE` says where and how to run; without it everything is at
  its default.
- **Run ids** may be cut to their first digits (at least 4) where they are unique.
"""


def reference() -> str:
    """Return the page: one section per command, in the order of the help."""
    root: Any = typer.main.get_command(app)
    return _HEAD + "".join(_section(path, command) for path, command in commands(root, "fde-ray"))


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield a command and those below it with their full names."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path} {name}")


def _section(path: str, command: Any) -> str:
    context = typer.Context(
        command,
        info_name=path,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        help_option_names=["-h", "--help"],
    )
    return f"\n## {path}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"


if __name__ == "__main__":
    typer.echo(reference(), nl=False)
