"""References to what a provider keeps: earlier replies, conversations, prompts, files. Pure.

What they stand for is charged and cannot be bounded here, and with one key for all it may be
another run's. Every program can send it whole instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_FIELDS = (
    *("previous_response_id", "conversation", "prompt", "cachedContent", "cached_content"),
    "previous_interaction_id",
)
_FILE_ID = ("file_id", "fileId")
_REFERRING = frozenset((*_FILE_ID, "file", "audio"))
_OWN_WORDS = ("encrypted_content", "content", "summary")


def kept_text(body: Mapping[str, Any], parts: Iterable[dict[str, Any]]) -> str | None:
    """Return the name of the first member that refers to something kept; None = there is none.

    parts: of the body.
    """
    field = next((name for name in _FIELDS if body.get(name) is not None), None)
    return field or next(_references(body, parts), None)


def _references(body: Mapping[str, Any], parts: Iterable[dict[str, Any]]) -> Iterator[str]:
    options, counted = body.get("prompt_cache_options"), body.get("generateContentRequest")
    if isinstance(options, dict) and options.get("comparison_response_id") is not None:
        yield "comparison_response_id"
    if isinstance(counted, dict):
        yield from (name for name in _FIELDS if counted.get(name) is not None)
    items = body.get("input")
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and _is_reference(item):
            yield "item_reference"
    for part in parts:
        if not _REFERRING.isdisjoint(part):
            yield from _in_part(part)


def _is_reference(item: Mapping[str, Any]) -> bool:
    """Whether an item has no words of its own: its type may be left out."""
    kind = item.get("type")
    if kind == "reasoning":
        return not any(item.get(name) for name in _OWN_WORDS)
    return kind == "item_reference" or (kind is None and "role" not in item and "id" in item)


def _in_part(part: Mapping[str, Any]) -> Iterator[str]:
    file, audio = part.get("file"), part.get("audio")
    for held in (part, file if isinstance(file, dict) else {}):
        yield from (name for name in _FILE_ID if isinstance(held.get(name), str))
    if isinstance(audio, dict) and isinstance(audio.get("id"), str):
        yield "audio.id"
