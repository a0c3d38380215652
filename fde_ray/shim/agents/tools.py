"""The five tools of our own agents: run, read, write, edit, list."""

from __future__ import annotations

import base64
import binascii
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import Any

from fde_ray.shim.places import localised

OUTPUT_LIMIT = 20_000
READ_LIMIT = 50_000
LIST_LIMIT = 500
RUN_TIMEOUT_S = 120.0
RUN_TIMEOUT_MAX_S = 3600.0


class ToolError(Exception):
    """The call cannot be carried out; the text goes to the model."""


def _tool(name: str, description: str, required: list[str], **properties: str) -> dict[str, Any]:
    types = {"timeout_s": "number", "offset": "integer", "limit": "integer", "all": "boolean"}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {
                    key: {"type": types.get(key, "string"), "description": text}
                    for key, text in properties.items()
                },
                "required": required,
            },
        },
    }


TOOLS = [
    _tool(
        "run",
        "Run a bash command in the working folder and get its output and exit code.",
        ["command"],
        command="The command line for bash.",
        timeout_s="Seconds until it is killed; 120 if not given.",
    ),
    _tool(
        "read",
        "Read a text file.",
        ["path"],
        path="File to read.",
        offset="First line wanted, counted from 1.",
        limit="How many lines.",
    ),
    _tool(
        "write",
        "Create or replace a file. Missing folders are made.",
        ["path"],
        path="File to write.",
        text="Its new content as text.",
        base64="Its new content as base64, in place of text.",
    ),
    _tool(
        "edit",
        "Replace a piece of text in a file. The old text must occur exactly once.",
        ["path", "old", "new"],
        path="File to change.",
        old="Text to be replaced.",
        new="Text to put there.",
        all="Replace every occurrence.",
    ),
    _tool("list", "List a folder with sizes.", [], path="Folder; the working folder if not given."),
]


class Toolbox:
    """Carries tool calls out. paths: inside path -> real path, where the two differ."""

    def __init__(self, workdir: str, paths: Mapping[str, str] | None = None) -> None:
        self._workdir = workdir
        self._paths = dict(paths or {})
        self._tools: dict[str, Callable[[dict[str, Any]], str]] = {
            "run": self._run,
            "read": self._read,
            "write": self._write,
            "edit": self._edit,
            "list": self._list,
        }

    def call(self, name: str, arguments: Any) -> str:
        """Return the text for the model; raise ToolError when the call is no good."""
        tool = self._tools.get(name)
        if tool is None:
            raise ToolError(f"there is no tool {name!r}; the tools are {', '.join(self._tools)}")
        if not isinstance(arguments, dict):
            raise ToolError("the arguments must be one JSON object")
        try:
            return tool(arguments)
        except OSError as error:
            raise ToolError(f"{error.strerror or error}") from error

    def _path(self, arguments: dict[str, Any], default: str | None = None) -> str:
        path = arguments.get("path", default)
        if not isinstance(path, str) or not path or "\0" in path:
            raise ToolError("path must be a file name")
        return os.path.join(self._workdir, localised(path, self._paths))

    def _run(self, arguments: dict[str, Any]) -> str:
        command = arguments.get("command")
        if not isinstance(command, str) or "\0" in command:
            raise ToolError("command must be a line of text")
        timeout = arguments.get("timeout_s", RUN_TIMEOUT_S)
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
            raise ToolError("timeout_s must be a number of seconds")
        return run_command(
            localised(command, self._paths), self._workdir, min(float(timeout), RUN_TIMEOUT_MAX_S)
        )

    def _read(self, arguments: dict[str, Any]) -> str:
        offset, limit = arguments.get("offset", 1), arguments.get("limit", 2000)
        if not _is_count(offset) or not _is_count(limit):
            raise ToolError("offset and limit must be positive integers")
        lines: list[str] = []
        size = 0
        with open(self._path(arguments), encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if number < offset:
                    continue
                lines.append(line[: READ_LIMIT - size])
                size += len(lines[-1])
                if len(lines) >= limit or size >= READ_LIMIT:
                    lines.append("\n[cut here; ask for more with offset]")
                    break
        return "".join(lines) or "(empty)"

    def _write(self, arguments: dict[str, Any]) -> str:
        text, encoded = arguments.get("text"), arguments.get("base64")
        if isinstance(encoded, str) and text is None:
            try:
                data = base64.b64decode(encoded, validate=True)
            except (binascii.Error, ValueError) as error:
                raise ToolError(f"base64: {error}") from error
        elif isinstance(text, str) and encoded is None:
            data = text.encode("utf-8", "replace")
        else:
            raise ToolError("give either text or base64")
        path = self._path(arguments)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
        return f"wrote {len(data)} bytes"

    def _edit(self, arguments: dict[str, Any]) -> str:
        old, new = arguments.get("old"), arguments.get("new")
        if not isinstance(old, str) or not old or not isinstance(new, str):
            raise ToolError("old and new must be texts, old not empty")
        path = self._path(arguments)
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            text = file.read()
        count = text.count(old)
        if count == 0 or (count > 1 and arguments.get("all") is not True):
            raise ToolError(f"the old text occurs {count} times")
        with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text.replace(old, new))
        return f"replaced {count}"

    def _list(self, arguments: dict[str, Any]) -> str:
        folder = self._path(arguments, ".")
        lines = []
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                info = entry.stat(follow_symlinks=False)
                is_dir = entry.is_dir(follow_symlinks=False)
                name = entry.name.encode("utf-8", "backslashreplace").decode()
                lines.append(f"{name}/" if is_dir else f"{name}  {info.st_size}")
        if len(lines) > LIST_LIMIT:
            lines[LIST_LIMIT:] = [f"[{len(lines) - LIST_LIMIT} more]"]
        return "\n".join(lines) or "(empty)"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def clipped(head: bytes, tail: bytes, total: int) -> str:
    """Return the beginning and the end of an output as text."""
    if total <= len(head):
        return head.decode("utf-8", "replace")
    left_out = total - len(head) - len(tail)
    middle = f"\n[{left_out} bytes left out]\n" if left_out > 0 else ""
    return head.decode("utf-8", "replace") + middle + tail.decode("utf-8", "replace")


def run_command(command: str, workdir: str, timeout_s: float) -> str:
    """Run bash; return its merged output, cut in the middle, and its exit code."""
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=workdir,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    reader = _OutputReader(process)
    try:
        code: int | str = process.wait(timeout_s)
        reader.join(0.3)  # a child left behind may hold the pipe open
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join(1.0)
        code = f"none, killed after {timeout_s:g} s"
    return f"{reader.text()}\n[exit code {code}]".lstrip("\n")


class _OutputReader(threading.Thread):
    """Keeps the first and the last part of an output of any length."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(daemon=True)
        assert process.stdout is not None
        self._stream = process.stdout
        self._head, self._tail, self._total = b"", b"", 0
        self.start()

    def run(self) -> None:
        half = OUTPUT_LIMIT // 2
        with self._stream as stream:
            while data := os.read(stream.fileno(), 65536):
                self._total += len(data)
                room = half - len(self._head)
                self._head += data[:room] if room > 0 else b""
                self._tail = (self._tail + data[max(room, 0) :])[-half:]

    def text(self) -> str:
        return clipped(self._head, self._tail, self._total)
