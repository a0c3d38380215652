"""Whether the output that a run's budget left a call was too little for its reply. Pure."""

from __future__ import annotations

from typing import NamedTuple

LIMIT_ENDS = frozenset({"length", "max_tokens", "max_output_tokens", "incomplete"})
"""How dialects say, in lower case, that a reply ended at the limit of its output."""
_COUNTED = ("provider", "offline")


class LimitedReply(NamedTuple):
    """An answered call whose output its run's budget had limited to `shrunk_to` tokens."""

    shrunk_to: int
    finish_reason: str | None
    completion_tokens: int | None
    usage_source: str | None


def is_shortened(call: LimitedReply) -> bool:
    """Whether the limit cut the reply; a limit that the reply stayed below changed nothing.

    Where nobody says how the reply ended nor how long it was, it counts as cut.
    """
    if (call.finish_reason or "").lower() in LIMIT_ENDS:
        return True
    if call.completion_tokens is None or call.completion_tokens >= call.shrunk_to:
        return True
    return call.finish_reason is None and call.usage_source not in _COUNTED
