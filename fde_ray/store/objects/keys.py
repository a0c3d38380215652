"""Which keys an object may have."""

from __future__ import annotations

import re

from fde_ray.store.errors import KeyInvalid

MAX_KEY = 1024
"""Characters; S3 counts 1024 bytes of UTF-8, which is checked too."""
MAX_SEGMENT_BYTES = 200
"""A file name has room for 255 bytes, and the temporary name needs some of them."""

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}(?:/[A-Za-z0-9_][A-Za-z0-9._-]{0,199})*")
"""How our own keys look: nothing more need be checked."""


def checked_key(key: str) -> str:
    """Return `key`; KeyInvalid unless it is relative, printable and free of dot segments."""
    if len(key) <= MAX_KEY and _PLAIN.fullmatch(key):
        return key
    if not key:
        raise KeyInvalid(key, "is empty")
    if len(key) > MAX_KEY:
        raise KeyInvalid(key, f"is longer than {MAX_KEY} characters")
    if not key.isprintable():
        raise KeyInvalid(key, "has a character that cannot be printed")
    if not key.isascii() and len(key.encode()) > MAX_KEY:
        raise KeyInvalid(key, f"is longer than {MAX_KEY} bytes")
    for segment in key.split("/"):
        if segment in {"", ".", ".."}:
            raise KeyInvalid(key, "has an empty or dot segment")
        if segment.startswith(TEMPORARY):
            raise KeyInvalid(key, f"has a segment that begins with {TEMPORARY!r}")
        if len(segment) * 4 > MAX_SEGMENT_BYTES and len(segment.encode()) > MAX_SEGMENT_BYTES:
            raise KeyInvalid(key, f"has a segment longer than {MAX_SEGMENT_BYTES} bytes")
    return key


TEMPORARY = ".tmp-"
"""How files in the making are called; they are no objects."""
