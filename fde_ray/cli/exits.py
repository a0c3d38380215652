"""How commands end: one line that says what to do, and an exit code.

0 all done · 1 not all done, or something failed · 2 a person can mend it · 130 interrupted.
No command ends in a traceback; what nobody foresaw goes into a file, whose place is told.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fde_ray.model.errors import FdeRayError, UserError

from .output import complain, muted

if TYPE_CHECKING:
    from typer import TyperException

FAILED, MISUSED, INTERRUPTED = 1, 2, 130
_NO_OPTION = "No such option"


class Interrupted(FdeRayError):
    """The person stopped the command. go_on: the command that goes on with the work."""

    def __init__(self, go_on: str = "") -> None:
        hint = f"; nothing is lost, go on with: {go_on}" if go_on else ""
        super().__init__(f"interrupted{hint}")

    def told(self) -> int:
        return complain(str(self), INTERRUPTED)


def ended(command: Callable[[], Any]) -> int:
    """Run a command and return its exit code; errors are told on stderr."""
    try:
        code = int(command() or 0)
        sys.stdout.flush()
        return code
    except typer.TyperException as error:
        return _misused(error)
    except UserError as error:
        return complain(str(error), error.exit_code)
    except Interrupted as error:
        return error.told()
    except (typer.Abort, KeyboardInterrupt):
        return Interrupted().told()
    except FdeRayError as error:
        return complain(str(error), FAILED)
    except BrokenPipeError:
        muted()
        return FAILED
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return complain(f"{error.strerror or type(error).__name__}{where}", FAILED)
    except Exception as error:  # noqa: BLE001 - the outermost boundary of the program
        return _unforeseen(error)


def _misused(error: TyperException) -> int:
    context = getattr(error, "ctx", None)
    message = error.format_message().strip()
    if context is not None and message == context.get_help().strip():
        typer.echo(message, err=True)  # a group without a command: its whole help
    elif message:
        path = context.command_path if context is not None else "fde-ray"
        early = context is not None and context.parent is None and message.startswith(_NO_OPTION)
        where = "options follow the command, " if early else ""
        message = message.partition(" (Possible")[0] if early else message
        complain(f"{message.rstrip('.')} ({where}see: {path} --help)", MISUSED)
    return MISUSED


def _unforeseen(error: Exception) -> int:
    told = f"internal error: {type(error).__name__}: {error}"
    place = _traceback_file()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    except OSError:
        return complain(told, FAILED)
    return complain(f"{told}; please report it with {place}", FAILED)


def _traceback_file() -> Path:
    home = os.environ.get("FDE_RAY_HOME") or "~/.fde-ray"
    return Path(home).expanduser() / "last-error.txt"
