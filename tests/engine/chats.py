"""Providers that fail for one role and answer the others offline."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from fde_ray.llm.offline import OfflineProvider
from fde_ray.model.chat import Bill, ChatReply, ChatRequest
from fde_ray.model.errors import CaseError, ProviderError


class FailingChat:
    def __init__(self, role: str, error: ProviderError) -> None:
        self._role, self._error, self.failed = role, error, 0
        self._offline = OfflineProvider(_no_probe)

    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply:
        if bill.role.value == self._role:
            self.failed += 1
            raise self._error
        return await self._offline.complete(request, bill)

    async def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]:
        await self.complete(request, bill)
        yield {}

    async def aclose(self) -> None:
        """Nothing is held."""


def _no_probe(case_id: str, name: str) -> Any:
    raise CaseError(case_id, f"no probe {name}")
