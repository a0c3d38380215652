"""Reads the body of an agent's request, of a length that is known before or comes in chunks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import Message
from io import BufferedIOBase

_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,12}")


class TooLarge(Exception):
    """It is longer than allowed."""


class Unreadable(Exception):
    """It does not have the form that its head says."""


def body_size(headers: Message, limit: int) -> int:
    """Return the most that the body can take. Raises TooLarge, Unreadable."""
    if _is_chunked(headers):
        return limit
    size = headers.get("content-length", "0")
    if not size.isdecimal() or not size.isascii():
        raise Unreadable
    if len(size) > 15 or int(size) > limit:
        raise TooLarge
    return int(size)


def read_body(headers: Message, stream: BufferedIOBase, limit: int) -> bytes:
    """Return the whole body. Raises TooLarge, Unreadable."""
    if _is_chunked(headers):
        return b"".join(_chunks(stream, limit))
    size = body_size(headers, limit)
    data = stream.read(size)
    if len(data) < size:
        raise Unreadable
    return data


def _is_chunked(headers: Message) -> bool:
    return "chunked" in headers.get("transfer-encoding", "").lower()


def _chunks(stream: BufferedIOBase, limit: int) -> Iterator[bytes]:
    total = 0
    while True:
        digits = stream.readline(64).partition(b";")[0].strip()
        if not _CHUNK_SIZE.fullmatch(digits):
            raise Unreadable
        size = int(digits, 16)
        total += size
        if total > limit:
            raise TooLarge
        if not size:
            stream.readline(64)
            return
        yield stream.read(size)
        stream.readline(8)
