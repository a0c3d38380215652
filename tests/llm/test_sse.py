"""Server-sent events are the same wherever their bytes were cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fde_ray.llm.sse import Event, EventReader, EventTooLarge

_LINE_END = st.sampled_from([b"\n", b"\r\n", b"\r"])
_VALUE = st.binary(max_size=20).map(lambda b: b.replace(b"\r", b"").replace(b"\n", b""))


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted(place % (len(data) + 1) for place in cuts)
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def read(pieces: list[bytes]) -> list[Event]:
    reader = EventReader()
    found = [event for piece in pieces for event in reader.feed(piece)]
    return found + reader.close()


@given(st.binary(max_size=200), st.lists(st.integers(0, 10_000), max_size=8))
def test_any_bytes_read_the_same_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    assert read(cut(data, cuts)) == read([data])


@given(
    st.lists(st.tuples(st.lists(_VALUE, min_size=1, max_size=3), st.booleans()), max_size=5),
    _LINE_END,
    st.lists(st.integers(0, 10_000), max_size=8),
)
def test_events_survive_their_line_ends_comments_and_cuts(
    events: list[tuple[list[bytes], bool]], end: bytes, cuts: list[int]
) -> None:
    data = b"\xef\xbb\xbf: hello" + end + end
    for lines, is_named in events:
        data += b": comment" + end + b"id: 7" + end + b"retry: 9" + end
        data += b"event: x" + end if is_named else b""
        data += b"".join(b"data: " + line + end for line in lines) + end
    expected = [Event("x" if named else "", b"\n".join(lines)) for lines, named in events]
    assert read(cut(data, cuts)) == expected


@given(st.lists(st.tuples(st.sampled_from(["", "x"]), _VALUE), max_size=5))
def test_an_event_is_read_as_it_was_written(events: list[tuple[str, bytes]]) -> None:
    written = [Event(name, data) for name, data in events]
    assert read([event.raw for event in written]) == written


def test_an_event_without_its_blank_line_counts_at_the_end() -> None:
    assert read([b"data: a\n\ndata: b"]) == [Event("", b"a"), Event("", b"b")]
    assert read([b"data"]) == [Event("", b"")]
    assert read([b"", b"\n\n\n", b": only a comment"]) == []


def test_an_endless_event_is_too_large() -> None:
    reader = EventReader(limit=1000)
    assert reader.feed(b"data: " + b"x" * 900) == []
    with pytest.raises(EventTooLarge):
        reader.feed(b"x" * 200)


def test_a_large_event_in_small_pieces_takes_no_long() -> None:
    reader = EventReader()
    for _ in range(40_000):
        assert reader.feed(b"x" * 100) == []
    assert reader.feed(b"\n\ndata: y\n\n") == [Event("", b"y")]
