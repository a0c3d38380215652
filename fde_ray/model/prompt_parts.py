"""The parts of a prompt in any dialect: messages, pieces of content, results of tools. Pure.

What a model reads as JSON (arguments of tools, schemas) has no parts: it is text.
"""

from __future__ import annotations

from typing import Any

ROOTS = (
    *("messages", "input", "system", "instructions"),
    *("contents", "systemInstruction", "system_instruction"),
)
"""Members of a body that hold what is said; all others shape the reply."""
_INNER = frozenset(
    {"content", "contents", "parts", "output", "source", "functionResponse", "function_response"}
)


def parts_in(*nodes: Any) -> list[dict[str, Any]]:
    """Return the nodes and all parts below them, outer ones first."""
    found: list[dict[str, Any]] = []
    for node in nodes:
        _gather(node, found)
    return found


def _gather(node: Any, found: list[dict[str, Any]]) -> None:
    if isinstance(node, list | tuple):
        for entry in node:
            _gather(entry, found)
    elif isinstance(node, dict):
        found.append(node)
        for name in _INNER & node.keys():
            if not isinstance(node[name], str):
                _gather(node[name], found)
