"""What the four dialects of model calls differ in: addresses, keys, usage, streams, replays. Pure.

`rules_of` gives the rules of one dialect; `base` says what rules are.
"""

from __future__ import annotations

from fde_ray.model.wire import Dialect

from .base import Fold, Rules
from .chat import Chat
from .gemini import Gemini
from .messages import Messages
from .responses import Responses

_RULES: dict[Dialect, Rules] = {
    "chat": Chat(),
    "responses": Responses(),
    "messages": Messages(),
    "gemini": Gemini(),
}


def rules_of(dialect: Dialect) -> Rules:
    return _RULES[dialect]


__all__ = ["Fold", "Rules", "rules_of"]
