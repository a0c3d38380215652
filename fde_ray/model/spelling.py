"""Texts of one form, and the sentence that refuses any other."""

from __future__ import annotations

import re

from pydantic import AfterValidator

_SHOWN = 60


def spelt(pattern: str, what: str) -> AfterValidator:
    """Take texts that `pattern` matches as a whole; of another it is told that it is no `what`.

    what: begins with a noun and says how it is written. Bound the length before this is asked.
    """
    form = re.compile(pattern)

    def checked(value: str) -> str:
        if form.fullmatch(value) is None:
            shown = value if len(value) <= _SHOWN else f"{value[: _SHOWN - 1]}…"
            raise ValueError(f"{shown!r} is no {what}")
        return value

    return AfterValidator(checked)
