"""Addresses in model calls that a provider, or a translator on this side, would fetch from. Pure.

An agent would reach by them what its sandbox must not. What it writes as data is no address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fde_ray.model.prompt_parts import ROOTS, parts_in

_LINKS = ("image_url", "video_url", "audio_url", "file_url")
_FILES = ("file_data", "file_id", "file_url")
_HOLDERS = frozenset((*_LINKS, *_FILES, "source", "fileData", "file"))
_DATA = re.compile(r"\s*data:", re.IGNORECASE)
_SCHEME = re.compile(r"\s*[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def fetched_address(parts: Iterable[dict[str, Any]]) -> str | None:
    """Return the first address that would be fetched for the parts of a body of any dialect."""
    links = (link for part in parts if not _HOLDERS.isdisjoint(part) for link in _links(part))
    return next(links, None)


def parts_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all parts of what is said in a body; a count may hold it one level below."""
    counted = body.get("generateContentRequest")
    holders = (body, counted if isinstance(counted, dict) else {})
    return parts_in(*(holder.get(name) for holder in holders for name in ROOTS))


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
