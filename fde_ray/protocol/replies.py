"""Reading the one JSON object that a model was asked for: tolerant in form, strict in value.

A fence, a preamble or closing words around the object are accepted. Everything that leaves a doubt
about what was said raises MalformedReply: the caller asks once more, and never takes a guess.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from fde_ray.model.base import canonical_json
from fde_ray.model.errors import FdeRayError, shortened

MAX_BYTES = 1_000_000
MAX_DEPTH = 32
MAX_OBJECTS = 16


class MalformedReply(FdeRayError):
    """A model's reply (or `_result.json`) is not the one object that was asked for."""

    def __init__(self, reason: str) -> None:
        self.reason = shortened(reason, 200)
        super().__init__(self.reason)


def parse_object(text: str) -> dict[str, Any]:
    """Return the only JSON object in `text`; the same object said twice counts once."""
    _check_size(text)
    found: dict[str, dict[str, Any]] = {}
    position = text.find("{")
    if position < 0:
        raise MalformedReply("no JSON object in the reply")
    for _ in range(MAX_OBJECTS):
        # A brace that opens no object is refused: looking further in could find a nested part.
        if _is_part(text[:position].rstrip()):
            raise MalformedReply("the object is part of a list, a text or another object")
        value, position = _decoded(text, position)
        found[_spelled(value)] = value
        if len(found) > 1:
            raise MalformedReply("several different JSON objects in the reply")
        position = text.find("{", position)
        if position < 0:
            return value
    raise MalformedReply(f"more than {MAX_OBJECTS} JSON objects in the reply")


def boolean(value: dict[str, Any], key: str) -> bool:
    item = _present(value, key)
    if not isinstance(item, bool):
        raise MalformedReply(f"{key!r} must be true or false")
    return item


def strings(value: dict[str, Any], key: str) -> tuple[str, ...]:
    return tuple(_listed(value, key, str, "texts"))


def integers(value: dict[str, Any], key: str) -> tuple[int, ...]:
    items = _listed(value, key, int, "integers")
    if any(isinstance(i, bool) or abs(i) > 2**53 for i in items):
        raise MalformedReply(f"{key!r} must be a list of integers")
    return tuple(items)


def _present(value: dict[str, Any], key: str) -> Any:
    if key not in value:
        raise MalformedReply(f"{key!r} is missing")
    return value[key]


def _listed(value: dict[str, Any], key: str, kind: type, word: str) -> list[Any]:
    items = _present(value, key)
    if not isinstance(items, list) or not all(isinstance(i, kind) for i in items):
        raise MalformedReply(f"{key!r} must be a list of {word}")
    return items


def _is_part(before: str) -> bool:
    """Whether an object that follows `before` belongs to a larger JSON value."""
    is_value_of_key = before.endswith(":") and before[:-1].rstrip().endswith('"')
    return is_value_of_key or before.endswith(("[", ",", '"'))


def _check_size(text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise MalformedReply("the reply is not valid Unicode") from error
    if size > MAX_BYTES:
        raise MalformedReply(f"the reply is larger than {MAX_BYTES} bytes")


def _decoded(text: str, position: int) -> tuple[dict[str, Any], int]:
    try:
        value, end = _DECODER.raw_decode(text, position)
    except ValueError as error:
        raise MalformedReply(f"not a JSON object: {error}") from error
    except RecursionError as error:
        raise MalformedReply("nested too deeply") from error
    _check_depth(value)
    return value, end


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise MalformedReply("nested too deeply")
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]


def _spelled(value: dict[str, Any]) -> str:
    text = canonical_json(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise MalformedReply("the reply is not valid Unicode") from error
    return text


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key is given twice")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is out of range")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_pairs, parse_float=_finite, parse_constant=_no_constant
)
