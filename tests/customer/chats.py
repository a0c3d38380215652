"""Scripted chats for the roles that ask a model one thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fde_ray.model.chat import ChatReply, ChatRequest

Reply = str | Exception


@dataclass
class ScriptedChat:
    """Answers by what `script` says to (request, how often this model was asked before)."""

    script: Callable[[ChatRequest, int], Reply]
    requests: list[ChatRequest] = field(default_factory=list)

    async def __call__(self, request: ChatRequest) -> ChatReply:
        before = sum(r.model == request.model for r in self.requests)
        self.requests.append(request)
        reply = self.script(request, before)
        if isinstance(reply, Exception):
            raise reply
        return ChatReply(message={"role": "assistant", "content": reply}, model=request.model)


def replies(*texts: Reply) -> ScriptedChat:
    """Return a chat that gives these replies in turn, per model; the last one for good."""
    return ScriptedChat(lambda _, before: texts[min(before, len(texts) - 1)])
