"""Durations and sizes as people write them: `12h`, `30m`, `4GiB`. A bare number is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_BYTES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_QUANTITY = re.compile(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]+)\s*")


def parse_duration(value: Any) -> float:
    """Return seconds; `value` is text such as `12h` or `43200s`."""
    return _parsed(value, _SECONDS, "a duration such as 30s, 45m or 12h")


def parse_size(value: Any) -> int:
    """Return bytes; `value` is text such as `512MiB` or `4GiB`."""
    return int(_parsed(value, _BYTES, "a size such as 512MiB or 4GiB"))


def _parsed(value: Any, units: dict[str, float] | dict[str, int], wanted: str) -> float:
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        raise ValueError(f"write {wanted}, not {str(value)[:40]!r}")
    return float(match[1]) * units[match[2]]


def format_duration(seconds: float) -> str:
    return f"{int(seconds)}s" if float(seconds).is_integer() else f"{round(seconds * 1000)}ms"


def format_size(size_bytes: int) -> str:
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % _BYTES[unit] == 0:
            return f"{size_bytes // _BYTES[unit]}{unit}"
    return f"{size_bytes}B"


def _described(units: Iterable[str]) -> WithJsonSchema:
    """Return the JSON Schema of the text, which validation alone would not tell."""
    pattern = rf"^\s*[0-9]{{1,15}}(\.[0-9]{{1,9}})?\s*({'|'.join(units)})\s*$"
    return WithJsonSchema({"type": "string", "pattern": pattern})


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration),
    _described(_SECONDS),
]
"""Seconds in Python, text with a unit in documents."""
Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(format_size), _described(_BYTES)]
"""Bytes in Python, text with a unit in documents."""
