"""Tools that run at a provider, in any dialect. Pure.

They would reach what a sandbox must not, and make calls that nobody counts. Tools that the agent's
own program carries out have other names, or say so. Looked at in November 2026: OpenAI, Anthropic,
Google, xAI, Mistral, Moonshot, Groq, Z.ai, OpenRouter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_HOSTED = (
    *("websearch", "webfetch", "xsearch", "browsersearch", "urlcontext", "enterprisewebsearch"),
    *("googlesearch", "googlemaps", "parallelaisearch", "builtinfunction", "mcp", "agenttoolset"),
    *("codeexecution", "codeinterpreter", "programmatictoolcalling", "imagegeneration", "advisor"),
    *("filesearch", "collectionssearch", "attachmentsearch", "documentlibrary", "retrieval"),
    *("livesearch", "vertexaisearch"),
)
"""How the names begin, in lower case and without underscores and the name of a router."""
_FIELDS = (
    *("web_search_options", "search_parameters", "enable_search", "mcp_servers", "plugins"),
    "container",
)
"""Members of a body that ask for the same in another way."""
_NESTED = ("additional_tools", "tool_search_output")
"""Items of an input that bring tools of their own."""


def hosted_tool(body: Mapping[str, Any]) -> str | None:
    """Return the name of the first tool that a provider would run; None = there is none."""
    field = next((name for name in _FIELDS if body.get(name)), None)
    return field or next((name for tool in _tools(body) if (name := _hosted(tool))), None)


def _tools(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from _listed(body.get("tools"))
    counted = body.get("generateContentRequest")
    if isinstance(counted, dict):
        yield from _listed(counted.get("tools"))
    items = body.get("input")
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and item.get("type") in _NESTED:
            yield from _listed(item.get("tools"))


def _listed(tools: Any) -> Iterator[Mapping[str, Any]]:
    for tool in tools if isinstance(tools, list) else ():
        if isinstance(tool, dict):
            yield tool
            yield from _listed(tool.get("tools"))  # a namespace


def _hosted(tool: Mapping[str, Any]) -> str | None:
    kind = tool.get("type")
    if isinstance(kind, str):
        name = _plain(kind)
        if name == "shell" and not _is_local(tool.get("environment")):
            return f"{kind} (set its environment to local)"
        if name.startswith("toolsearch") and tool.get("execution") != "client":
            return f"{kind} (set its execution to client)"
    # Gemini names the kind of a tool by its key.
    names = (kind, *tool) if isinstance(kind, str) else tuple(tool)
    return next((name for name in names if _plain(name).startswith(_HOSTED)), None)


def _is_local(environment: Any) -> bool:
    return isinstance(environment, dict) and environment.get("type") == "local"


def _plain(name: str) -> str:
    return name.rpartition(":")[2].replace("_", "").lower()
