"""Reads what an OpenAI-compatible server sent; anything else is a ProviderError. Pure."""

from __future__ import annotations

import email.utils
import math
import re
from typing import Any

from pydantic_core import from_json

from fde_ray.metering.chunks import usage_of
from fde_ray.model.chat import ChatReply, Usage
from fde_ray.model.errors import ProviderError
from fde_ray.model.failures import FailureKind

MAX_REPLY_BYTES = 32 * 2**20
REJECTED = frozenset({400, 401, 403, 404, 405, 413, 415, 422})
NOT_SENT = frozenset({429, 503, 529})
"""Statuses by which a provider says that it has done no work."""


def parse_reply(data: bytes, model: str) -> ChatReply:
    """Return the reply; ProviderError (unavailable, uncertain) when it is no chat completion."""
    value = object_of(data)
    _raise_inner_error(value)
    usage = value.get("usage")
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise unusable("the reply has no choices")
    message = choices[0].get("message")
    if not isinstance(message, dict):
        raise unusable("the reply has no message")
    return ChatReply(
        message=clean_message(message),
        finish_reason=_text(choices[0].get("finish_reason")) or "stop",
        usage=usage_of(value.get("usage")) or Usage(),
        model=_text(value.get("model")) or model,
        reply_id=_text(value.get("id")),
        raw_usage=usage if isinstance(usage, dict) else None,
    )


def clean_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return the assistant message with content a text or None and calls that are calls."""
    content = message.get("content")
    calls = message.get("tool_calls")
    if content is not None and not isinstance(content, str):
        content = _joined_parts(content)
    clean: dict[str, Any] = {**message, "role": "assistant", "content": content}
    clean.pop("tool_calls", None)
    if calls:
        if not isinstance(calls, list) or not all(map(_is_call, calls)):
            raise unusable("the tool calls of the reply are malformed")
        clean["tool_calls"] = calls
    elif content is None:
        clean["content"] = ""
    return clean


def parse_chunk(data: str) -> dict[str, Any]:
    """Return one chunk of a stream; ProviderError when it is none or says an error."""
    value = object_of(data.encode())
    _raise_inner_error(value)
    return value


def status_error(status: int, body: bytes, retry_after: str | None, now: float) -> ProviderError:
    """Return the error of an HTTP status; 5xx after sending leaves open what was charged."""
    detail = f"HTTP {status}: {_message(body)}"
    answer = _answer(body)
    if status in REJECTED:
        rejected = FailureKind.PROVIDER_REJECTED
        return ProviderError(detail, kind=rejected, status=status, answer=answer)
    return ProviderError(
        detail,
        status=status,
        retry_after_s=retry_after_s(retry_after, now),
        uncertain=status not in NOT_SENT and status >= 500,
        answer=answer,
    )


def retry_after_s(header: str | None, now: float) -> float | None:
    """Return the seconds that a Retry-After header asks for; None when it says nothing usable."""
    if header is None or len(header) > 100:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - now
        except (ValueError, OverflowError):
            return None
    return min(max(seconds, 0.0), 3600.0) if math.isfinite(seconds) else None


def unusable(detail: str) -> ProviderError:
    """Return the error of a reply that came and cannot be used."""
    return ProviderError(detail, uncertain=True)


def object_of(data: bytes) -> dict[str, Any]:
    """Return a JSON object; ProviderError (uncertain) for anything else."""
    try:
        value = _json(data)
    except ValueError as error:
        raise unusable("the reply is not JSON" if data.strip() else "the reply is empty") from error
    if not isinstance(value, dict):
        raise unusable("the reply is not a JSON object")
    return value


def _json(data: bytes) -> Any:
    """Read JSON; half a surrogate pair, which models do write, and bytes that are no UTF-8 become
    U+FFFD."""
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError:
        text = data.decode("utf-8", "replace").encode()
        mended = _SURROGATE.sub(lambda m: m[0] if m[1] else rb"\ufffd", text)
        if mended == data:
            raise
        return from_json(mended, allow_inf_nan=False)


_SURROGATE = re.compile(
    rb"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
"""Group 1: what is whole, an escaped backslash or a pair."""


def _raise_inner_error(value: dict[str, Any]) -> None:
    """Some servers answer 200 with an error inside."""
    if value.get("error") and "choices" not in value:
        raise unusable(f"the provider says: {error_text(value['error'])}")


def _answer(body: bytes) -> dict[str, Any] | None:
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _message(body: bytes) -> str:
    try:
        value = from_json(body)
    except ValueError:
        return body[:300].decode("utf-8", "replace")
    return error_text(value.get("error", value)) if isinstance(value, dict) else str(value)[:300]


def error_text(error: Any) -> str:
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return str(error["message"])[:300]
    return str(error)[:300]


def _joined_parts(content: Any) -> str:
    if not isinstance(content, list):
        raise unusable("the content of the reply is no text")
    parts = [part.get("text") for part in content if isinstance(part, dict)]
    return "".join(part for part in parts if isinstance(part, str))


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
