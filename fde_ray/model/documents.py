"""YAML documents of the user, read so that every fault names its line."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import count
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from .base import Record
from .errors import SpecError
from .specs import NAME

R = TypeVar("R", bound=Record)

MAX_BYTES = 1_000_000
MAX_DEPTH = 30
MAX_VALUES = 100_000
"""A few lines of names for each other spell billions of values."""
_TAGS = {f"tag:yaml.org,2002:{t}" for t in ("map", "seq", "str", "int", "float", "bool", "null")}


def parse_document(text: str | bytes, record: type[R], *, path: str = "") -> R:
    """Return `record` read from YAML (or JSON) text; SpecError names the line at fault."""
    node = _node(text, path)
    value = _value(node, path, 0, count(1))
    if not isinstance(value, dict):
        raise SpecError("the document must be a mapping of keys", path=path, line=1)
    try:
        return record.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        raise SpecError(_message(first), path=path, line=_line(node, first["loc"])) from error


def line_of(text: str | bytes, loc: tuple[int | str, ...]) -> int:
    """Return the line of a value in a document that was read before; `loc` as pydantic has it."""
    return _line(_node(text, ""), loc)


def _node(text: str | bytes, path: str) -> yaml.Node:
    if len(text) > MAX_BYTES:
        raise SpecError(f"larger than {MAX_BYTES} bytes", path=path)
    try:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        node = yaml.compose(decoded, Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise SpecError("not UTF-8 text", path=path) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", "not YAML")
        raise SpecError(str(problem), path=path, line=mark.line + 1 if mark else None) from error
    except RecursionError as error:
        raise SpecError("nested too deeply", path=path) from error
    if node is None:
        raise SpecError("the document is empty", path=path)
    return node


def _value(node: yaml.Node, path: str, depth: int, numbers: Iterator[int]) -> Any:
    line = node.start_mark.line + 1
    if depth > MAX_DEPTH:
        raise SpecError("nested too deeply", path=path, line=line)
    if next(numbers) > MAX_VALUES:
        raise SpecError(f"more than {MAX_VALUES} values", path=path, line=line)
    if node.tag not in _TAGS:
        raise SpecError(f"cannot read the tag {node.tag[:60]!r}", path=path, line=line)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, path, depth + 1, numbers) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        found: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode) or key == "<<":
                raise SpecError("keys must be plain text", path=path, line=line)
            if key in found:
                raise SpecError(
                    f"{key!r} is given twice", path=path, line=key_node.start_mark.line + 1
                )
            found[key] = _value(value_node, path, depth + 1, numbers)
        return found
    try:
        return yaml.SafeLoader("").construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError(f"cannot read {str(node.value)[:40]!r}", path=path, line=line) from error


def _line(node: yaml.Node, loc: tuple[int | str, ...]) -> int:
    line = node.start_mark.line + 1
    for part in loc:
        if isinstance(node, yaml.MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == part), None)
            if pair is None:
                return line
            line = pair[0].start_mark.line + 1
            node = pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            if part >= len(node.value):
                return line
            node = node.value[part]
            line = node.start_mark.line + 1
    return line


def _message(error: Any) -> str:
    loc = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"unknown key {loc!r}"
    if error["type"] == "missing":
        return f"{loc!r} is missing"
    text = _advice(error) or str(error["msg"]).removeprefix("Value error, ")
    return f"{loc}: {text}" if loc else text


def _advice(error: Any) -> str:
    """Return what to write instead, where pydantic speaks of Python; empty if its text will do."""
    kind, given = error["type"], error["input"]
    if kind == "string_type" and isinstance(given, int | float):
        return "write it in quotes: YAML reads it as a number"
    if kind == "string_pattern_mismatch" and error["ctx"]["pattern"] == NAME:
        return f"{str(given)[:40]!r} is no name: up to 63 small letters, digits, '.', '_' or '-'"
    bounds = error.get("ctx", {})
    if kind == "too_short":
        return f"at least {bounds['min_length']} needed, not {bounds['actual_length']}"
    if kind == "too_long":
        return f"at most {bounds['max_length']} allowed, not {bounds['actual_length']}"
    return ""
