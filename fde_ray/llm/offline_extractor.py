"""The offline extractor: one command that maps by the schema's aliases, then closing words.

The command carries the source of `offline_mapping`, which runs inside the grading sandbox.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any, NamedTuple

END_OF_SCRIPT = "FDE_RAY_MAPPING_ENDS"
DONE = "[offline] The deliverable is mapped by the schema's declared names; see _result.json."
_ROW = r"^\|\s*{name}\s*\|\s*`([^`\n]+)`"
_TITLE, _FENCE = "## Target schema", "```json\n"


class Task(NamedTuple):
    schema: dict[str, Any]
    workspace: str
    data_dir: str
    output_dir: str


def extraction_task(prompt: str) -> Task | None:
    """Return what an extractor's prompt asks for; None when it is no such prompt."""
    schema = _schema_in(prompt.partition(_TITLE)[2].partition(_FENCE)[2])
    workspace = _path(prompt, "workspace of the agent")
    data_dir, output_dir = _path(prompt, "data of the case"), _path(prompt, "output directory")
    if schema is None or workspace is None or data_dir is None or output_dir is None:
        return None
    return Task(schema, workspace, data_dir, output_dir)


def _schema_in(text: str) -> dict[str, Any] | None:
    """Return the JSON object that `text` begins with, up to the closing fence."""
    try:
        schema, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return schema if isinstance(schema, dict) and text[end:].startswith("\n```") else None


def extractor_message(task: Task, messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the one tool call, and after its result the closing words."""
    if any(m.get("role") == "tool" for m in messages):
        return {"role": "assistant", "content": DONE}
    function = {"name": "run", "arguments": json.dumps({"command": command(task)})}
    call = {"id": "map-1", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def command(task: Task) -> str:
    """Return the bash command: map, then let the evaluator have its one look.

    Paths stand in it as plain text, since a runner may have to replace them.
    """
    source = resources.files("fde_ray.llm").joinpath("offline_mapping.py").read_text("utf-8")
    facts = json.dumps(task._asdict(), ensure_ascii=True)
    return "\n".join(
        (
            f"python3 - <<'{END_OF_SCRIPT}'",
            source.rstrip(),
            "",
            "",
            f"main(json.loads({facts!r}))",
            END_OF_SCRIPT,
            f"evaluate {_quoted(task.output_dir)}",
        )
    )


def _path(prompt: str, name: str) -> str | None:
    match = re.search(_ROW.format(name=re.escape(name)), prompt, re.MULTILINE)
    return match[1] if match else None


def _quoted(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"
