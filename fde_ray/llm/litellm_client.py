"""Reaches providers with a dialect of their own through the litellm SDK; it prices nothing.

litellm is imported at the first call: it takes seconds and reads the environment.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import AsyncIterator
from typing import Any

from pydantic_core import to_json

from fde_ray.metering.places import Place, Places, Waiting, unheard
from fde_ray.model.chat import Bill, ChatReply, ChatRequest
from fde_ray.model.clock import Clock
from fde_ray.model.errors import ProviderError
from fde_ray.model.failures import FailureKind
from fde_ray.model.profile import Endpoint

from .keys import ApiKey, read_key
from .replies import NOT_SENT, REJECTED, parse_chunk, parse_reply, retry_after_s


def knows_provider(model: str) -> bool:
    """Whether litellm can tell the provider from the model's name. Imports litellm."""
    try:
        load_sdk().get_llm_provider(model)
    except Exception:  # noqa: BLE001 - litellm raises its own kinds of refusal
        return False
    return True


class LiteLLM:
    """Calls one endpoint's models. The caller takes a `place` before it sends.

    sdk: the module itself, given by tests.
    """

    def __init__(self, endpoint: Endpoint, clock: Clock, sdk: Any = None) -> None:
        self._endpoint, self._clock, self._sdk = endpoint, clock, sdk
        self._places = Places(endpoint.max_parallel, clock)

    async def aclose(self) -> None:
        """Nothing is held: the SDK pools connections for the whole process."""

    def place(self, model: str, waiting: Waiting = unheard) -> Place:
        return self._places.taken(waiting)

    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply:
        reply = await self._call(request, stream=False)
        return parse_reply(to_json(_plain(reply)), request.model)

    async def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]:
        chunks = await self._call(request, stream=True)
        key = read_key(self._endpoint)
        try:
            async for chunk in chunks:
                yield parse_chunk(to_json(_plain(chunk)).decode())
        except ProviderError:
            raise
        except Exception as error:
            raise self._translated(error, key, uncertain=True) from error

    async def _call(self, request: ChatRequest, *, stream: bool) -> Any:
        key = read_key(self._endpoint)
        sdk = self._sdk or await asyncio.to_thread(load_sdk)
        fields = request.model_dump(mode="json", exclude={"extra", "model"}, exclude_none=True)
        try:
            return await sdk.acompletion(
                model=self._endpoint.model or request.model,
                api_key=None if key is None else key.reveal(),
                timeout=self._endpoint.timeout,
                num_retries=0,
                max_retries=0,
                stream=stream,
                **({"stream_options": {"include_usage": True}} if stream else {}),
                **request.extra,
                **fields,
            )
        except Exception as error:
            raise self._translated(error, key, uncertain=False) from error

    def _translated(
        self, error: Exception, key: ApiKey | None, *, uncertain: bool
    ) -> ProviderError:
        status = getattr(error, "status_code", None)
        status = status if isinstance(status, int) else None
        detail = f"{type(error).__name__}: {error}"
        if key is not None:
            detail = key.masked(detail)
        if status in REJECTED and not uncertain:
            return ProviderError(detail, kind=FailureKind.PROVIDER_REJECTED, status=status)
        headers = getattr(getattr(error, "response", None), "headers", None) or {}
        return ProviderError(
            detail,
            status=status,
            retry_after_s=retry_after_s(headers.get("retry-after"), self._clock.now()),
            uncertain=uncertain or status not in NOT_SENT,
        )


def load_sdk() -> Any:
    """Import litellm, told not to download its price map and not to retry."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    sdk: Any = importlib.import_module("litellm")
    sdk.telemetry = False
    sdk.suppress_debug_info = True
    sdk.drop_params = False
    # It takes 100 equal chunks for a model that repeats itself, and cuts a stream that is fine.
    sdk.REPEATED_STREAMING_CHUNK_LIMIT = 1_000_000
    return sdk


def _plain(value: Any) -> Any:
    return value.model_dump() if hasattr(value, "model_dump") else value
