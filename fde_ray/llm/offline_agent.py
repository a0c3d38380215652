"""The offline agent: plays a probe of a case through the tools of the minimal scaffold.

Where the dialogue stands is read from the messages alone, so that any repeat of a call gets the
same reply: rounds that were asked, files that were written, summary.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

FILES_PER_STEP = 8
DO_NOTHING = "do_nothing"
NOTHING_DONE = "I have looked at your request and have nothing to hand over."


class Probe(Protocol):
    """What is played; `fde_ray.cases.records.Probe` fits."""

    @property
    def rounds(self) -> Sequence[Sequence[str]]: ...

    @property
    def summary(self) -> str: ...

    @property
    def files(self) -> Mapping[str, bytes]: ...


ProbeOf = Callable[[str, str], Probe]
"""(case id, probe name) -> probe."""


def agent_message(probe: Probe, messages: Sequence[dict[str, Any]], marker: str) -> dict[str, Any]:
    """Return the assistant message that comes next. `marker`: the heading of a question section."""
    asked = sum(1 for m in messages if _is_own_words(m) and marker in str(m["content"]))
    offers_questions = any(marker in _text(m) for m in messages if m.get("role") == "user")
    if offers_questions and asked < len(probe.rounds):
        return _words(question_text(probe.rounds[asked], marker))
    written = _written_paths(messages)
    left = [name for name in sorted(probe.files) if name not in written]
    if left:
        return _writing({name: probe.files[name] for name in left[:FILES_PER_STEP]}, len(written))
    return _words(probe.summary.strip() or NOTHING_DONE)


def question_text(questions: Sequence[str], marker: str) -> str:
    bullets = "\n".join(f"- {' '.join(question.split())}" for question in questions)
    return f"Before I begin I need your word on some points.\n\n{marker}\n\n{bullets}"


def _writing(files: Mapping[str, bytes], done: int) -> dict[str, Any]:
    calls = [
        {
            "id": f"write-{done + place}",
            "type": "function",
            "function": {"name": "write", "arguments": json.dumps(_write_arguments(name, data))},
        }
        for place, (name, data) in enumerate(files.items(), 1)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _write_arguments(name: str, data: bytes) -> dict[str, str]:
    """Return text as text; base64 for bytes that text would not carry unchanged."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    if text is None or "\r" in text or "\0" in text:
        return {"path": name, "base64": base64.b64encode(data).decode("ascii")}
    return {"path": name, "text": text}


def _written_paths(messages: Sequence[dict[str, Any]]) -> set[str]:
    """Return the paths of write calls that got a reply, whatever it said."""
    answered = {m.get("tool_call_id") for m in messages if m.get("role") == "tool"}
    paths: set[str] = set()
    for message in messages:
        calls = message.get("tool_calls") if message.get("role") == "assistant" else None
        for call in calls if isinstance(calls, list) else []:
            path = _path_of(call)
            if path is not None and call.get("id") in answered:
                paths.add(path)
    return paths


def _path_of(call: Any) -> str | None:
    try:
        if call["function"]["name"] != "write":
            return None
        return str(json.loads(call["function"]["arguments"])["path"])
    except (KeyError, TypeError, ValueError):
        return None


def _is_own_words(message: dict[str, Any]) -> bool:
    return message.get("role") == "assistant" and isinstance(message.get("content"), str)


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _words(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
