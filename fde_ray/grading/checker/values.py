"""Cells, and when two of them mean the same."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

Cell = Any
"""Text, Decimal, bool or None."""

MAX_NUMBER_CHARS = 60
EXACT = Decimal("1e-12")
CONVERTED = Decimal("1e-9")
_PLAIN = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_NUMBER = re.compile(_PLAIN)
_WITH_UNIT = re.compile(rf"[€$£]?\s*({_PLAIN})\s*(?:[A-Za-z%°µ€$£][^,;]{{0,15}})?")
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(?:[ ,'’][0-9]{3})+(?:\.[0-9]+)?")
_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
_TRUE = {"true", "yes", "y", "t", "1"}
_FALSE = {"false", "no", "n", "f", "0"}
_LEADING_ZEROS = re.compile(r"(?<![0-9])0+(?=[0-9])")
_EXCEL_EPOCH = datetime(1899, 12, 30)  # noqa: DTZ001 - spreadsheets know no time zone


def text_of(cell: Cell) -> str:
    """Return the canonical text: one spelling of numbers, single spaces, no case."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, Decimal):
        return _plain(cell)
    return " ".join(str(cell).split()).casefold()


def _plain(number: Decimal) -> str:
    if not number.is_finite() or abs(number.adjusted()) > 40:
        return str(number).casefold()
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


@lru_cache(maxsize=1 << 18)
def loose_text(text: str) -> str:
    """Return letters and digits only, without leading zeros: how ids are compared last."""
    if _NUMBER.fullmatch(text) and len(text) <= MAX_NUMBER_CHARS:
        return _plain(Decimal(text))
    return _LEADING_ZEROS.sub("", "".join(c if c.isalnum() else " " for c in text)).replace(" ", "")


def loose(cell: Cell) -> str:
    return loose_text(text_of(cell))


def numbers(cell: Cell) -> tuple[Decimal, ...]:
    """Return every number that a cell may mean (`1,234` may be two); none for plain text."""
    if isinstance(cell, bool) or cell is None:
        return ()
    if isinstance(cell, Decimal):
        return (cell,) if cell.is_finite() else ()
    return _numbers_in(str(cell).strip())


@lru_cache(maxsize=1 << 18)
def _numbers_in(text: str) -> tuple[Decimal, ...]:
    if not text or len(text) > MAX_NUMBER_CHARS:
        return ()
    found = []
    if match := _WITH_UNIT.fullmatch(text):
        found.append(match[1])
    if _THOUSANDS.fullmatch(text):
        found.append(re.sub(r"[ ,'’]", "", text))
    if _COMMA.fullmatch(text):
        found.append(text.replace(",", "."))
    return tuple(Decimal(item) for item in found)


def number(cell: Cell) -> Decimal | None:
    """Return the first reading of a cell as a number."""
    return next(iter(numbers(cell)), None)


def same(target: Cell, source: Cell, kind: str, factor: Decimal | None = None) -> bool:
    """Tell whether `target` is `source` (times `factor`) for a field of type `kind`."""
    if factor is None:
        if text_of(target) == text_of(source):
            return True
        truth = _truth(target) if kind != "string" else None
        if truth is not None and truth == _truth(source):
            return True
        if kind == "string" and _same_moment(target, source):
            return True
    return any(
        close(t, s if factor is None else s * factor, EXACT if factor is None else CONVERTED)
        for t in numbers(target)
        for s in numbers(source)
    )


def close(a: Decimal, b: Decimal, tolerance: Decimal) -> bool:
    return abs(a - b) <= tolerance * max(abs(a), abs(b))


def _truth(cell: Cell) -> bool | None:
    text = text_of(cell)
    return True if text in _TRUE else False if text in _FALSE else None


def moment(cell: Cell) -> datetime | None:
    """Return the date and time that a text or a spreadsheet serial number means."""
    if isinstance(cell, Decimal):
        if not (cell.is_finite() and 20_000 < cell < 80_000):
            return None
        return _EXCEL_EPOCH + timedelta(seconds=round(float(cell) * 86_400))
    text = str(cell or "").strip()
    if not 10 <= len(text) <= 32 or text[4:5] != "-":
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).replace(tzinfo=None)
    except ValueError:
        return None


def _same_moment(target: Cell, source: Cell) -> bool:
    at = moment(target) if not isinstance(target, Decimal) else None
    return at is not None and at == moment(source)


def as_decimal(value: Any) -> Decimal | None:
    """Return a finite Decimal of a JSON number or text, else None."""
    try:
        result = Decimal(str(value))
    except (InvalidOperation, ValueError):
        return None
    return result if result.is_finite() and abs(result.adjusted()) < 300 else None


def shown(cell: Cell) -> str:
    """Return a cell as short printable text for a finding."""
    text = str(cell)[:40]
    return repr("".join(c if c.isprintable() else "?" for c in text))
