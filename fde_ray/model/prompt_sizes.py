"""How many tokens a prompt has: at most, and about. Pure.

A token of a tokenizer that can fall back to bytes (byte-level BPE, SentencePiece with byte
fallback) stands for at least one byte, so that no text has more tokens than bytes. A whole body is
counted: the names and quotes of its JSON are more than what providers put around each message. What
shapes the reply (tools, schemas) counts twice, since providers write it out again, with spaces and
line breaks or in a language of their own. What is no text has a maximum of its own, below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic_core import to_json

from .prompt_parts import ROOTS, parts_in

BYTES_PER_TOKEN = 3
"""Tokenizers average about 4 bytes in English text; fewer bytes give more tokens."""
CALL_TOKENS = 2048
"""What a provider adds to any call, such as instructions for tools: known are up to some 800."""
TOOL_TOKENS = 2048
"""Of a tool that its provider describes itself (a shell, an editor): known are up to some 750."""
IMAGE_TOKENS = 32_768
"""The dearest image that is known takes about 16,000 tokens; many models need 1,000 to 5,000."""
FILE_TOKENS = 2**20
"""Of a document, sound or film: as much as the windows of models hold, since nobody knows here what
comes of its bytes."""
_WORDS = frozenset({"application/json", "application/xml", "application/yaml"})
_SVG = "image/svg+xml"
_IMAGE = re.compile(r"image/(png|jpe?g|webp|gif|bmp|hei[cf]|avif)")
_DATA = re.compile(r"\s*data:([^;,]*)", re.IGNORECASE)
_LONG_CACHE = re.compile(rb'"ttl":"(?!5m"|30m")')


class Carrier(NamedTuple):
    """Where a part of some type holds what is no text, and what that is when it does not say."""

    member: str
    media_type: str = ""


_CARRIERS = {
    "image_url": Carrier("image_url", "image/png"),
    "input_image": Carrier("image_url", "image/png"),
    "computer_screenshot": Carrier("image_url", "image/png"),
    "video_url": Carrier("video_url"),
    "audio_url": Carrier("audio_url"),
    "input_audio": Carrier("input_audio"),
    "input_file": Carrier("file_data"),
    "file": Carrier("file"),
}
_BLOBS = ("inlineData", "inline_data")
_HOLDERS = frozenset(carrier.member for carrier in _CARRIERS.values()) | {"source", *_BLOBS}
_PLAIN_TOOLS = ("function", "custom", "namespace")
_OWN_SCHEMA = ("function", "parameters", "input_schema")
_GEMINI_TOOLS = ("functionDeclarations", "function_declarations")


def estimated_tokens(text: str | bytes) -> int:
    """Return about as many tokens as words have; digits and base64 may have twice as many."""
    data = text.encode() if isinstance(text, str) else text
    return -(-len(data) // BYTES_PER_TOKEN)


def most_prompt_tokens(body: Mapping[str, Any], size_bytes: int) -> int:
    """Return what the prompt of a body has at most. size_bytes: of the body as JSON."""
    shapes = {name: value for name, value in body.items() if name not in ROOTS}
    tokens = CALL_TOKENS + size_bytes + len(to_json(shapes, inf_nan_mode="null"))
    tokens += sum(TOOL_TOKENS for tool in _listed(body.get("tools")) if _is_their_own(tool))
    parts = parts_in(*(body.get(name) for name in ROOTS))
    return tokens + sum(_more_than_text(part) for part in parts if not _HOLDERS.isdisjoint(part))


def asks_for_long_cache(core: bytes) -> bool:
    """Whether a body (JSON without spaces) wants its prompt kept for longer than half an hour."""
    return _LONG_CACHE.search(core) is not None


def _listed(tools: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tools, list | tuple):
        yield from (tool for tool in tools if isinstance(tool, dict))


def _is_their_own(tool: Mapping[str, Any]) -> bool:
    """Whether the provider says what the tool is, instead of the caller."""
    kind = tool.get("type")
    if isinstance(kind, str):
        return kind not in _PLAIN_TOOLS
    return not any(name in tool for name in (*_OWN_SCHEMA, *_GEMINI_TOOLS))


def _more_than_text(part: Mapping[str, Any]) -> int:
    """Return how many tokens more (or less) a part may have than its bytes say."""
    held = _held(part)
    if held is None:
        return 0
    data, media_type = held
    if media_type.startswith("text/") or media_type in _WORDS:
        return 0
    if media_type == _SVG:
        return IMAGE_TOKENS
    most = IMAGE_TOKENS if _IMAGE.fullmatch(media_type) else max(FILE_TOKENS, len(data))
    return most - len(data)


def _held(part: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the data of a part that is no text, with its media type; "" = nobody says it."""
    kind, source = part.get("type"), part.get("source")
    if kind in ("image", "document") and isinstance(source, dict):
        is_data = source.get("type") == "base64"
        return _typed(source.get("data"), source.get("media_type")) if is_data else None
    for name in _BLOBS:
        blob = part.get(name)
        if isinstance(blob, dict):
            return _typed(blob.get("data"), blob.get("mimeType") or blob.get("mime_type"))
    carrier = _CARRIERS.get(kind) if isinstance(kind, str) else None
    if carrier is None:
        return None
    value = part.get(carrier.member)
    if isinstance(value, dict):
        value = next((value[n] for n in ("url", "data", "file_data") if n in value), None)
    return _typed(value, carrier.media_type)


def _typed(data: Any, media_type: Any) -> tuple[str, str] | None:
    if not isinstance(data, str):
        return None
    said = _DATA.match(data)
    kind = said[1] if said else media_type
    return data, kind.strip().lower() if isinstance(kind, str) else ""
