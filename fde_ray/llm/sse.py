"""Server-sent events out of bytes that were cut anywhere. Pure."""

from __future__ import annotations

from typing import NamedTuple

MAX_EVENT_BYTES = 16 * 2**20
_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """`name` is empty where the stream names none."""

    name: str
    data: bytes

    @property
    def raw(self) -> bytes:
        head = b"event: " + self.name.encode() + b"\n" if self.name else b""
        if b"\n" in self.data:
            return head + b"data: " + self.data.replace(b"\n", b"\ndata: ") + b"\n\n"
        return head + b"data: " + self.data + b"\n\n"


class EventTooLarge(ValueError):
    """No event ends within `MAX_EVENT_BYTES`."""


class EventReader:
    """Feed it what comes; it gives the events that are whole. Comments, ids and retry times are
    dropped; line ends may be of any kind."""

    def __init__(self, limit: int = MAX_EVENT_BYTES) -> None:
        self._limit = limit
        self._pending = bytearray()
        self._seen = 0
        self._ends_in_cr = False
        self._is_first = True

    def feed(self, piece: bytes) -> list[Event]:
        """Return the events that `piece` completes; EventTooLarge."""
        self._pending += self._with_plain_ends(piece)
        end = self._pending.rfind(b"\n\n", max(0, self._seen - 1))
        if end < 0:
            self._seen = len(self._pending)
            if self._seen > self._limit:
                raise EventTooLarge(f"an event is larger than {self._limit} bytes")
            return []
        whole = bytes(self._pending[:end])
        del self._pending[: end + 2]
        self._seen = len(self._pending)
        return self._events(whole)

    def close(self) -> list[Event]:
        """Return what the stream ended with, should its last blank line be missing."""
        rest, self._pending, self._seen = bytes(self._pending), bytearray(), 0
        return self._events(rest)

    def _with_plain_ends(self, piece: bytes) -> bytes:
        if self._ends_in_cr:
            piece, self._ends_in_cr = b"\r" + piece, False
        if b"\r" not in piece:
            return piece
        if piece.endswith(b"\r"):
            # The other half of a line end may follow.
            piece, self._ends_in_cr = piece[:-1], True
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _events(self, text: bytes) -> list[Event]:
        if self._is_first and text:
            text, self._is_first = text.removeprefix(_BOM), False
        found = (_event(block) for block in text.split(b"\n\n"))
        return [event for event in found if event is not None]


def _event(block: bytes) -> Event | None:
    if block.startswith(b"data: ") and b"\n" not in block:
        return Event("", block[6:])
    name, data = "", None
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data = value if data is None else data + b"\n" + value
        elif field == b"event":
            name = value.decode("utf-8", "replace")
    return None if data is None else Event(name, data)
