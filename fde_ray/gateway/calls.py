"""Model calls of agents: billed to the token's session, held when a provider is not there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from fde_ray.model.chat import ChatReply, ChatRequest
from fde_ray.model.errors import Refusal
from fde_ray.model.failures import Fault
from fde_ray.model.states import PauseCause

from .chat_bodies import WireChat
from .clocks import SessionClocks
from .faults import as_refusal
from .open_turns import OpenTurns
from .ports import Calls, Session
from .tokens import TokenClaims


class AgentCalls:
    """`call_id` of a shim counts inside its own session only.

    A call that waits for a place of ours is held here: its shim knows nothing of it.
    """

    def __init__(self, calls: Calls, open_turns: OpenTurns, clocks: SessionClocks) -> None:
        self._calls, self._open_turns, self._clocks = calls, open_turns, clocks

    async def complete(
        self, claims: TokenClaims, session: Session, request: ChatRequest, call_id: str
    ) -> ChatReply:
        check_model(claims, request.model)
        subject = session.subject
        await self._open_turns.catch_up(subject)
        async with self._clocks.serving(subject, call_id):
            try:
                return await self._calls.complete(
                    request,
                    session.bill,
                    f"{subject}:{call_id}",
                    budget_nanousd=session.budget_nanousd,
                    waiting=partial(self._clocks.waits, subject, call_id),
                )
            except Exception as error:
                raise await self._refused(subject, call_id, error) from error

    async def stream(
        self, claims: TokenClaims, session: Session, wire: WireChat, call_id: str
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the chunks; the usage chunk only if the caller asked for it."""
        check_model(claims, wire.request.model)
        subject = session.subject
        await self._open_turns.catch_up(subject)
        async with self._clocks.serving(subject, call_id):
            chunks = self._calls.stream(
                wire.request,
                session.bill,
                f"{subject}:{call_id}",
                budget_nanousd=session.budget_nanousd,
                waiting=partial(self._clocks.waits, subject, call_id),
            )
            try:
                async for chunk in chunks:
                    if wire.include_usage:
                        yield chunk
                    elif chunk.get("choices"):
                        yield {k: v for k, v in chunk.items() if k != "usage"}
            except Exception as error:
                raise await self._refused(subject, call_id, error) from error

    async def _refused(self, subject: str, call_id: str, error: Exception) -> Refusal:
        """Return the refusal; a fault that the shim waits out holds the request."""
        refusal = as_refusal(error)
        cause = _hold_cause(refusal)
        if cause is not None:
            await self._clocks.hold(subject, call_id, cause)
        return refusal


def check_model(claims: TokenClaims, model: str) -> None:
    if model not in claims.models:
        known = ", ".join(claims.models)
        reason = f"this session may call {known}, not {model[:100]!r}"
        raise Refusal(403, Fault.AGENT, reason, code="wrong_model")


def _hold_cause(refusal: Refusal) -> PauseCause | None:
    if refusal.fault is Fault.PROVIDER:
        return PauseCause.PROVIDER
    return PauseCause.OUTAGE if refusal.fault is Fault.OURS else None
