"""What comes out of a sandbox, turned into what the plane takes: any shape in, clean values out."""

from __future__ import annotations

from typing import Any

from .mailbox import Letter

TEXT_LIMIT = 1 << 20
ENTRIES_LIMIT = 100
ENDED = "the sandbox ended by itself"
EXIT_KINDS = ("agent_error", "agent_resource", "step_limit", "refused")


def exit_of(letter: Letter, oom_kills: int) -> dict[str, Any] | None:
    """Return the AgentExit that a letter stands for; None when the plane knows already.

    The fields of an exit are clean.
    """
    if letter.kind == "stop":
        reason = str(letter.fields["reason"])
        kinds = {
            "agent_resource": "agent_resource",
            "own_time_limit": "time_limit",
            "turn_refused": "agent_error",
        }
        kind = kinds.get(reason)
        detail = str(letter.fields.get("detail", ""))
        return (kind and {"kind": kind, "detail": detail[:500], "exit_code": None}) or None
    fields = letter.fields
    kind = fields.get("kind")
    if kind not in EXIT_KINDS:
        kind = "agent_error"
    detail = ENDED if letter.kind == "closed" else fields.get("detail", "")
    if kind == "agent_error" and oom_kills:
        kind, detail = "agent_resource", f"memory: the kernel killed {oom_kills} processes"
    return {"kind": kind, "detail": detail, "exit_code": fields.get("exit_code")}


def clean_claim(message: dict[str, Any]) -> dict[str, Any] | None:
    """Return a turn or an exit in bounded values, else None: nothing larger is ever kept."""
    if message.get("type") == "turn":
        return {
            "type": "turn",
            "channel": clean_channel(message),
            "text": clean_text(message.get("text"), TEXT_LIMIT),
            "entries": clean_entries(message.get("entries")),
        }
    if message.get("type") == "exit":
        code = message.get("exit_code")
        is_code = isinstance(code, int) and not isinstance(code, bool) and abs(code) < 2**31
        return {
            "type": "exit",
            "kind": clean_text(message.get("kind"), 50),
            "detail": clean_text(message.get("detail"), 500),
            "exit_code": code if is_code else None,
        }
    return None


def clean_text(value: Any, limit: int) -> str:
    """Return a claim as text that UTF-8 can carry."""
    text = value if isinstance(value, str) else ""
    return text[:limit].encode("utf-8", "replace").decode("utf-8")


def clean_channel(claim: dict[str, Any]) -> str:
    channel = claim.get("channel")
    return channel if channel in ("native", "callback") else "text"


def clean_entries(value: Any) -> list[dict[str, Any]]:
    found = []
    for entry in value[:ENTRIES_LIMIT] if isinstance(value, list) else []:
        if isinstance(entry, dict):
            options = entry.get("options")
            found.append(
                {
                    "question": clean_text(entry.get("question"), 20_000),
                    "header": clean_text(entry.get("header"), 1_000),
                    "options": [clean_text(o, 1_000) for o in options[:50]]
                    if isinstance(options, list)
                    else [],
                }
            )
    return found
