"""How figures are put into words."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return `1 run` or `2 runs`. plural: None = the noun with an s."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def is_or_are(count: int) -> str:
    return "is" if count == 1 else "are"
