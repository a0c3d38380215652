"""Model calls of agents: billed to the token's session, held when a provider is not there."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from fde_ray.llm.dialects import rules_of
from fde_ray.metering.places import Waiting
from fde_ray.model.chat import ChatReply
from fde_ray.model.errors import Refusal
from fde_ray.model.failures import Fault
from fde_ray.model.profile import OtherModels
from fde_ray.model.prompt_sizes import estimated_tokens
from fde_ray.model.states import PauseCause
from fde_ray.model.wire import WireRequest

from .clocks import SessionClocks
from .faults import as_refusal
from .open_turns import OpenTurns
from .ports import Calls, Session
from .tokens import TokenClaims

log = logging.getLogger(__name__)


class AgentCalls:
    """`call_id` of a shim counts inside its own session only.

    A call that waits for a place of ours is held here: its shim knows nothing of it.
    other_models: what becomes of a call of another model than the session's. heard: who else hears
    of waits. retries: of a provider that is not there, before a shim hears of it.
    """

    def __init__(
        self,
        calls: Calls,
        open_turns: OpenTurns,
        clocks: SessionClocks,
        other_models: OtherModels,
        heard: Callable[[Waiting], Waiting],
        retries: int = 0,
    ) -> None:
        self._calls, self._open_turns, self._clocks = calls, open_turns, clocks
        self._other_models, self._heard, self._retries = other_models, heard, retries

    async def complete(
        self, claims: TokenClaims, session: Session, request: WireRequest, call_id: str
    ) -> ChatReply:
        request = self._assigned(claims, request)
        if request.action == "count":
            return await self._counted(session, request, call_id)
        subject = session.subject
        async with self._clocks.serving(subject, call_id):
            try:
                return await self._calls.complete(
                    request, session.bill, f"{subject}:{call_id}", **self._terms(session, call_id)
                )
            except Exception as error:
                raise await self._refused(subject, call_id, error) from error

    async def stream(
        self, claims: TokenClaims, session: Session, request: WireRequest, call_id: str
    ) -> AsyncIterator[bytes | ChatReply]:
        """Yield server-sent events, or a stored reply alone."""
        request = self._assigned(claims, request)
        subject = session.subject
        async with self._clocks.serving(subject, call_id):
            pieces = self._calls.stream(
                request, session.bill, f"{subject}:{call_id}", **self._terms(session, call_id)
            )
            try:
                async for piece in pieces:
                    yield piece
            except Exception as error:
                raise await self._refused(subject, call_id, error) from error

    def _assigned(self, claims: TokenClaims, request: WireRequest) -> WireRequest:
        """Return the call for the session's model; Refusal 403 where another one is not mapped."""
        assigned = next((m for m in claims.models if m == request.model), claims.models[0])
        request = request.assigned(assigned)
        if request.model_asked is None:
            return request
        if self._other_models == "refuse":
            known = ", ".join(claims.models)
            reason = f"this session may call {known}, not {request.model_asked!r}"
            raise Refusal(403, Fault.AGENT, reason, code="wrong_model")
        fields = {"subject": claims.sub, "asked": request.model_asked, "model": assigned}
        log.info("model_mapped", extra=fields)
        return request

    async def _counted(self, session: Session, request: WireRequest, call_id: str) -> ChatReply:
        """Return how many tokens a request has: from its provider, else an estimate."""
        if self._calls.counts(request):
            try:
                return await self._calls.complete(
                    request, session.bill, f"{session.subject}:{call_id}", budget_nanousd=None
                )
            except Exception as error:  # noqa: BLE001 - an estimate serves where there is no count
                log.info("count_failed", extra={"reason": as_refusal(error).reason})
        body = rules_of(request.dialect).count(estimated_tokens(request.core))
        return ChatReply(message={}, model=request.model, body=body)

    def _terms(self, session: Session, call_id: str) -> dict[str, Any]:
        return {
            "budget_nanousd": session.budget_nanousd,
            "retries": self._retries,
            "waiting": self._heard(partial(self._clocks.waits, session.subject, call_id)),
        }

    async def _refused(self, subject: str, call_id: str, error: Exception) -> Refusal:
        """Return the refusal; a fault that the shim waits out holds the request."""
        refusal = as_refusal(error)
        cause = _hold_cause(refusal)
        if cause is not None:
            await self._clocks.hold(subject, call_id, cause)
        return refusal


def _hold_cause(refusal: Refusal) -> PauseCause | None:
    if refusal.fault is Fault.PROVIDER:
        return PauseCause.PROVIDER
    return PauseCause.OUTAGE if refusal.fault is Fault.OURS else None
