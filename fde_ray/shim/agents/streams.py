"""Puts a streamed chat completion together."""

from __future__ import annotations

import json
from typing import Any

from fde_ray.shim.wire import Unreachable


def whole_message(data: bytes) -> tuple[dict[str, Any], str]:
    """Return (assistant message, finish reason) of a whole event stream."""
    words: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    finish = ""
    try:
        for event in _events(data):
            if "error" in event:
                raise Unreachable(str(event["error"])[:300])
            for choice in event.get("choices") or []:
                delta = choice.get("delta") or {}
                words.append(delta.get("content") or "")
                for piece in delta.get("tool_calls") or []:
                    _add_piece(calls, piece)
                finish = choice.get("finish_reason") or finish
        if not finish:
            raise Unreachable("the stream ends early")
        message: dict[str, Any] = {"role": "assistant", "content": "".join(words) or None}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unreachable("the reply is no chat stream") from error
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message, finish


def _events(data: bytes) -> list[dict[str, Any]]:
    lines = (line.strip() for line in data.split(b"\n"))
    payloads = [line[5:].strip() for line in lines if line.startswith(b"data:")]
    return [json.loads(payload) for payload in payloads if payload != b"[DONE]"]


def _add_piece(calls: dict[int, dict[str, Any]], piece: dict[str, Any]) -> None:
    call = calls.setdefault(
        int(piece.get("index", len(calls))),
        {"id": "", "type": "function", "function": {"name": "", "arguments": ""}},
    )
    call["id"] = piece.get("id") or call["id"]
    function = piece.get("function") or {}
    call["function"]["name"] += function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""
