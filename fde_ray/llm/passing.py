"""One reply on its way from a provider to an agent: passed on, and read for the ledger. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic_core import to_json

from fde_ray.metering.calls import Meter
from fde_ray.model.chat import ChatReply, Usage
from fde_ray.model.prompt_sizes import estimated_tokens
from fde_ray.model.wire import WireRequest

from .dialects import Fold, Rules
from .replies import object_of, unusable
from .sse import Event

DONE = b"[DONE]"


class Passing:
    """One stream on its way through: what goes on at once, what it spells, how it ended."""

    def __init__(self, rules: Rules, request: WireRequest, meter: Meter) -> None:
        self._rules, self._request, self._meter = rules, request, meter
        self._fold: Fold = rules.fold()
        self._is_done = False

    @property
    def is_ended(self) -> bool:
        return self._is_done or self._fold.is_finished

    def said(self, events: Iterable[Event]) -> bytes:
        """Return what to pass on now; from the end of the reply on, all goes to the tail."""
        now: list[bytes] = []
        for event in events:
            if event.data == DONE:
                self._is_done = True
                self._meter.tail += event.raw
            elif event.data and not self._is_done:
                value = object_of(event.data)
                self._fold.add(value)
                shown = self._rules.shown(event, value, self._request)
                if shown and self._fold.is_finished:
                    self._meter.tail += shown
                elif shown:
                    now.append(shown)
        return b"".join(now)

    def ended(self) -> dict[str, Any]:
        """Return the whole reply; ProviderError when the stream has no proper end."""
        if not self.is_ended:
            raise unusable("the stream ended early")
        if self._rules.name == "chat" and not self._is_done:
            self._meter.tail += Event("", DONE).raw
        return self._fold.reply()

    def tell(self) -> None:
        """Leave what is known of usage, should the call have been cut off."""
        if self._meter.reply is not None:
            return
        raw = self._fold.usage
        if raw is not None:
            self._meter.raw_usage = raw
            self._meter.usage = self._rules.usage(raw, self._request)
        self._meter.output_estimate = estimated_tokens(to_json(self._fold.reply()))


def reply_of(rules: Rules, request: WireRequest, body: dict[str, Any]) -> ChatReply:
    """Return a whole reply as the ledger keeps it; ProviderError when it is none."""
    answer = rules.answer(body)
    usage = None if answer.usage is None else rules.usage(answer.usage, request)
    return ChatReply(
        message={},
        finish_reason=answer.finish_reason or "stop",
        usage=usage or Usage(),
        model=answer.model or request.model,
        reply_id=answer.reply_id,
        body=body,
        raw_usage=answer.usage,
    )
