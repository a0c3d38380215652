"""Our own agent: a chat loop with five tools over any OpenAI-compatible model.

`agent minimal` and `agent scripted` are the same loop; the second accepts offline models only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from fde_ray.shim.wire import Exchange, Unreachable, json_bytes

from .streams import whole_message
from .tools import TOOLS, Toolbox, ToolError

SYSTEM = (
    "You work alone in a Linux folder, through tools, on a job that a client describes to you. "
    "Look at the material before you decide. Put every result into files in the working folder; "
    "the folder is what the client receives. Commands run without a terminal and without internet. "
    "As soon as you reply without a tool call, you hand over: the client reads that reply."
)
NUDGE = "Your reply was empty. Go on with the job, or say in words what you are handing over."
CONTEXT_LIMIT = 400_000
"""Characters of tool output kept in the conversation; older output is dropped first."""
PASSED_SETTINGS = ("temperature", "top_p", "seed", "max_tokens", "reasoning_effort")


class Ended(Exception):
    """The agent cannot go on; `kind` as in AgentExit."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind, self.detail = kind, detail[:500]


class Model:
    """The chat endpoint at OPENAI_BASE_URL."""

    def __init__(self, base_url: str, model: str, settings: dict[str, Any]) -> None:
        url = urlsplit(base_url)
        self._address, self._path = f"http://{url.netloc}", url.path.rstrip("/")
        self._fixed: dict[str, Any] = {"model": model, "tools": TOOLS}
        self._fixed |= {k: settings[k] for k in PASSED_SETTINGS if k in settings}
        self._streams = settings.get("stream") is True

    def reply(self, messages: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
        """Return the assistant message and its finish reason."""
        body = {**self._fixed, "messages": messages}
        if self._streams:
            body["stream"] = True
        for wait in (0.5, 2.0, 5.0, None):
            try:
                return self._once(json_bytes(body))
            except Unreachable as error:
                if wait is None:
                    raise Ended(
                        "agent_error", f"the model could not be reached: {error}"
                    ) from error
                time.sleep(wait)
        raise AssertionError("unreachable")

    def _once(self, body: bytes) -> tuple[dict[str, Any], str]:
        headers = {"content-type": "application/json"}
        path = f"{self._path}/chat/completions"
        with Exchange(self._address, "POST", path, body, headers, timeout=24 * 3600.0) as reply:
            data = reply.read()
            if reply.status >= 500:
                raise Unreachable(f"HTTP {reply.status}")
            if reply.status >= 400:
                text = data[:300].decode("utf-8", "replace")
                raise Ended("agent_error", f"the model refused the request: {text}")
        if self._streams:
            return whole_message(data)
        try:
            choice = json.loads(data)["choices"][0]
            return dict(choice["message"]), str(choice.get("finish_reason") or "stop")
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise Unreachable("the reply is no chat completion") from error


class Minimal:
    def __init__(self, model: Model, tools: Toolbox, max_steps: int | None) -> None:
        self._model, self._tools = model, tools
        self._max_steps = max_steps
        self._steps = 0
        self._was_nudged = False
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]

    def turn(self, text: str) -> str:
        """Work on a message until the model replies without a tool call; return that reply."""
        self._messages.append({"role": "user", "content": text})
        while True:
            message = self._step()
            calls = message.get("tool_calls")
            if calls:
                for call in calls:
                    self._answer_call(call)
                self._drop_old_output()
                continue
            words = message.get("content")
            if isinstance(words, str) and words.strip():
                return words
            if self._was_nudged:
                return ""
            self._was_nudged = True
            self._messages.append({"role": "user", "content": NUDGE})

    def _step(self) -> dict[str, Any]:
        if self._max_steps is not None and self._steps >= self._max_steps:
            raise Ended("step_limit", f"{self._steps} steps used")
        self._steps += 1
        message, reason = self._model.reply(self._messages)
        if reason == "content_filter" or (message.get("refusal") and not message.get("content")):
            raise Ended("refused", "the model declined the request")
        message["role"] = "assistant"
        calls = message.get("tool_calls")
        kept = [c for c in calls if _is_call(c)] if isinstance(calls, list) else []
        clean: dict[str, Any] = {"role": "assistant", "content": message.get("content")}
        if kept:
            clean["tool_calls"] = kept
        elif not isinstance(clean["content"], str):
            clean["content"] = ""
        self._messages.append(clean)
        return clean

    def _answer_call(self, call: dict[str, Any]) -> None:
        function = call["function"]
        try:
            arguments = json.loads(function.get("arguments") or "{}")
            content = self._tools.call(function["name"], arguments)
        except (ValueError, TypeError, RecursionError) as error:
            content = f"error: the arguments are not valid JSON: {error}"
        except ToolError as error:
            content = f"error: {error}"
        self._messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})

    def _drop_old_output(self) -> None:
        outputs = [m for m in self._messages if m["role"] == "tool"]
        size = sum(len(m["content"]) for m in outputs)
        for message in outputs[:-1]:
            if size <= CONTEXT_LIMIT:
                return
            size -= len(message["content"])
            message["content"] = "[old output dropped]"


def _is_call(call: Any) -> bool:
    return (
        isinstance(call, dict)
        and isinstance(call.get("id"), str)
        and isinstance(call.get("function"), dict)
        and isinstance(call["function"].get("name"), str)
    )


def message_text(message: dict[str, Any]) -> str:
    """Return the words of a `message` line: its text, else its answers."""
    if isinstance(message.get("text"), str) and message["text"]:
        return str(message["text"])
    return "\n\n".join(str(answer) for answer in message.get("answers") or [])


def say(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def converse(name: str) -> None:
    """Speak the runner's JSON lines until stdin closes."""
    start = json.loads(sys.stdin.readline())
    if name == "scripted" and not str(start["model"]).startswith("offline/"):
        raise Ended("agent_error", "the scripted scaffold needs an offline/... model")
    paths = start.get("paths") or {}
    workdir = str(paths.get(start["workdir"], start["workdir"]))
    agent = Minimal(
        Model(os.environ["OPENAI_BASE_URL"], start["model"], start["settings"]),
        Toolbox(workdir, paths),
        start.get("max_steps"),
    )
    say({"type": "turn", "text": agent.turn(start["prompt"])})
    for line in sys.stdin:
        say({"type": "turn", "text": agent.turn(message_text(json.loads(line)))})


def main(argv: list[str]) -> int:
    if argv not in (["minimal"], ["scripted"]):
        print("usage: fde-shim.pyz agent minimal|scripted", file=sys.stderr)
        return 2
    try:
        converse(argv[0])
    except Ended as error:
        say({"type": "exit", "kind": error.kind, "detail": error.detail, "exit_code": None})
    return 0
