"""How commands speak: data on stdout, everything else on stderr, foreign text made harmless."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import Any

import typer

NAME = "fde-ray"


def emit_json(value: Any) -> None:
    """Print one JSON document. Records print by their own JSON form."""
    plain = value.jsonable() if hasattr(value, "jsonable") else value
    typer.echo(_spelled_out(json.dumps(plain, indent=2, ensure_ascii=False, allow_nan=False)))


def say(text: str) -> None:
    """Print data for a person: one line or more, whatever it holds made harmless."""
    typer.echo(safe(text, multiline=True, limit=len(text)))


def note(text: str) -> None:
    """Print a line beside the data: progress, hints."""
    typer.echo(safe(as_called(text)), err=True)


def complain(text: str, code: int) -> int:
    typer.echo(f"fde-ray: {safe(as_called(text), limit=1000)}", err=True)
    return code


def as_called(text: str) -> str:
    """Return a text in which commands, written as `fde-ray …`, can be called from here."""
    return text.replace(f"`{NAME} ", f"`{program()} ") if f"`{NAME} " in text else text


def safe(text: str, *, multiline: bool = False, limit: int = 20_000) -> str:
    """Return foreign text without anything that a terminal would act on."""
    from fde_ray.analysis.foreign_text import safe_text

    return safe_text(text, limit=limit, multiline=multiline)


def program() -> str:
    """Return how a person can call this program from where it was called."""
    import shutil

    called = sys.argv[0]
    if os.path.basename(called) != NAME or shutil.which(NAME):
        return NAME
    near = os.path.relpath(called)
    return called if near.startswith("..") else near


def table(header: list[str], rows: list[list[str]]) -> None:
    """Print aligned columns; nothing is cut, so that a log can be searched."""
    shown = [header, *([safe(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in shown) for i in range(len(header))]
    for row in shown:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        say("  ".join(cells).rstrip())


def is_terminal() -> bool:
    return sys.stderr.isatty()


def columns() -> int:
    """Return the width of the terminal, or a width that reads well in a log."""
    import shutil

    return shutil.get_terminal_size((120, 24)).columns


def readable() -> None:
    """Let a terminal of few characters show the rest spelled out instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def muted() -> None:
    """Nobody reads stdout any more: let the interpreter's last flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _spelled_out(document: str) -> str:
    """Write what steers a display as JSON escapes; the document says the same."""
    if document.isascii() and "\x7f" not in document:
        return document
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in document)


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1]
