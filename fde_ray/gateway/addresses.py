"""Addresses in model calls that a provider, or a translator on this side, would fetch from. Pure.

An agent would reach by them what its sandbox must not. What it writes as data is no address.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_ROOTS = ("messages", "input", "system", "contents", "systemInstruction", "system_instruction")
_INNER = ("content", "contents", "parts", "output", "source")
_RESPONSES = ("functionResponse", "function_response")
_LINKS = ("image_url", "video_url", "audio_url", "file_url")
_FILES = ("file_data", "file_id", "file_url")
_DATA = re.compile(r"\s*data:", re.IGNORECASE)
_SCHEME = re.compile(r"\s*[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def fetched_address(body: Mapping[str, Any]) -> str | None:
    """Return the first address that would be fetched for a body of any dialect."""
    roots = [body.get(name) for name in _ROOTS]
    prompt, counted = body.get("prompt"), body.get("generateContentRequest")
    if isinstance(prompt, dict) and isinstance(prompt.get("variables"), dict):
        roots += prompt["variables"].values()
    if isinstance(counted, dict):
        roots += [counted.get(name) for name in _ROOTS]
    return next((link for root in roots for part in _parts(root) for link in _links(part)), None)


def _parts(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, list):
        for entry in node:
            yield from _parts(entry)
    elif isinstance(node, dict):
        yield node
        for name in (*_INNER, *_RESPONSES):
            inner = node.get(name)
            if isinstance(inner, list | dict):
                yield from _parts(inner)


def _links(part: dict[str, Any]) -> Iterator[str]:
    for name in _LINKS:
        value = part.get(name)
        link = value.get("url") if isinstance(value, dict) else value
        if isinstance(link, str) and not _DATA.match(link):
            yield link
    source = part.get("source")
    if isinstance(source, dict) and isinstance(source.get("url"), str):
        yield source["url"]
    for name in ("fileData", "file_data"):
        value = part.get(name)
        if isinstance(value, dict):
            yield from (v for k in ("fileUri", "file_uri") if isinstance(v := value.get(k), str))
    file = part.get("file")
    for held in (part, file if isinstance(file, dict) else {}):
        for name in _FILES:
            value = held.get(name)
            if isinstance(value, str) and _SCHEME.match(value) and not _DATA.match(value):
                yield value
