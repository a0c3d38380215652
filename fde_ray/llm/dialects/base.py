"""What each dialect must know, and what they read alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from pydantic_core import to_json

from fde_ray.llm.replies import error_text, unusable
from fde_ray.llm.sse import Event
from fde_ray.model.chat import LARGEST_COUNT, Usage
from fde_ray.model.wire import Dialect, WireRequest

Json = dict[str, Any]


class Answer(NamedTuple):
    """What a whole reply says of itself; empty = it does not say."""

    model: str = ""
    reply_id: str = ""
    finish_reason: str = ""
    usage: Json | None = None
    """As the provider sent it."""


class Fold(Protocol):
    """Events of one stream, folded into the reply that they spell."""

    @property
    def is_finished(self) -> bool: ...

    @property
    def usage(self) -> Json | None:
        """What the stream has told of usage so far, as the provider sent it."""
        ...

    def add(self, event: Json) -> None:
        """Take the next event; ProviderError when it says that the reply failed."""
        ...

    def reply(self) -> Json: ...


class Rules(Protocol):
    name: Dialect

    def url(self, base_url: str, request: WireRequest, model: str) -> str: ...

    def headers(self, key: str | None) -> Mapping[str, str]: ...

    def body(self, request: WireRequest, model: str) -> bytes: ...

    def answer(self, reply: Json) -> Answer:
        """Read a whole reply; ProviderError (uncertain) when it is none."""
        ...

    def usage(self, raw: Json, request: WireRequest) -> Usage | None:
        """Return the counts; None when there are none in it."""
        ...

    def fold(self) -> Fold: ...

    def shown(self, event: Event, value: Json, request: WireRequest) -> bytes | None:
        """Return the event as the caller gets it; None = not at all."""
        ...

    def events_of(self, reply: Json, request: WireRequest) -> Iterator[bytes]:
        """Yield a whole reply as a stream."""
        ...

    def count(self, tokens: int) -> Json:
        """Return the reply to a question how many tokens a request has."""
        ...


def joined(base_url: str, version: str, path: str) -> str:
    """Return an address below a root that may end in its version or not."""
    base = base_url.rstrip("/")
    has_version = base.rpartition("/")[2].startswith("v1")
    return f"{base}/{path}" if has_version else f"{base}/{version}/{path}"


def spliced(request: WireRequest, *heads: bytes) -> bytes:
    """Return the caller's body with members put before its own."""
    core = request.core
    if not heads:
        return core
    rest = core[1:] if core == b"{}" else b"," + core[1:]
    return b"{" + b",".join(heads) + rest


def member(name: str, value: Any) -> bytes:
    return to_json(name) + b":" + to_json(value)


def event(value: Json, name: str = "") -> bytes:
    return Event(name, to_json(value, inf_nan_mode="null")).raw


def whole_number(value: Any) -> int | None:
    """Return a count; None for what is missing or no count. Zero is a count."""
    return value if type(value) is int and 0 <= value < LARGEST_COUNT else None


def counts(raw: Json, **names: str) -> dict[str, int]:
    """Return field → count for each path (`outer.inner`) that leads to a count."""
    found = {field: whole_number(at(raw, path)) for field, path in names.items()}
    return {field: n for field, n in found.items() if n is not None}


def cache_writes(
    whole: int | None, short: int | None, long: int | None, request: WireRequest
) -> Json:
    """Return how much went to caches that live for minutes and for hours, in fields of `Usage`.

    Of a total without its kinds nobody says how much was for hours: none unless that was asked for,
    else all of it at most.
    """
    source: Json = {}
    if short is None and long is None and whole is not None:
        short = whole
        if whole and request.asks_for_long_cache:
            short, long, source = 0, whole, {"source": "estimated"}
    return {"cache_write_5m_tokens": short, "cache_write_1h_tokens": long, **source}


def at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def objects(value: Any) -> list[Json]:
    """Return the objects in a list; none for anything else."""
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []


def raise_inner_error(value: Json) -> None:
    """Some servers answer 200 with an error inside."""
    error = value.get("error")
    if error:
        raise unusable(f"the provider says: {error_text(error)}")
