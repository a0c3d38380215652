"""The catalogue as a page: `python -m fde_ray.sandbox.probes.reference docs/isolation.md`.

What stands between the two marks of the page is replaced; all else is written by hand.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

from .catalogue import ATTEMPTS
from .records import Attempt, Control

BEGIN, END = "<!-- attempts -->", "<!-- end of attempts -->"


def tables() -> str:
    """Return a table of each group."""
    parts = []
    for group, attempts in groupby(ATTEMPTS, key=lambda attempt: attempt.group):
        rows = [f"| `{a.id}` | {a.what} | {a.expected} | {_control(a)} |" for a in attempts]
        head = ["| attempt | tries | expected | control |", "|---|---|---|---|"]
        parts.append("\n".join([f"### {group.capitalize()}", "", *head, *rows]))
    return "\n\n".join(parts)


def page(text: str) -> str:
    """Return the page with the tables of now; ValueError when a mark is missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def _control(attempt: Attempt) -> str:
    if attempt.control is Control.UNSAFE:
        return f"not run: {attempt.unsafe}"
    return attempt.control.value


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
