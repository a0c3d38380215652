"""Reaches what speaks another dialect than its caller through the litellm SDK; it prices nothing.

litellm is imported at the first call: it takes seconds and reads the environment.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

from pydantic_core import to_json

from fde_ray.metering.calls import Meter
from fde_ray.metering.places import Place, Places, Waiting, unheard
from fde_ray.model.chat import Bill, ChatReply, ChatRequest
from fde_ray.model.clock import Clock
from fde_ray.model.errors import ProviderError
from fde_ray.model.failures import FailureKind
from fde_ray.model.profile import Endpoint
from fde_ray.model.wire import WireRequest

from .dialects import rules_of
from .keys import ApiKey, read_key
from .passing import Passing, reply_of
from .replies import NOT_SENT, REJECTED, parse_chunk, parse_reply, retry_after_s, unusable
from .translation import address_of, events_from, plain, translated


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
        return parse_reply(to_json(plain(reply)), request.model)

    async def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]:
        chunks = await self._call(request, stream=True)
        key = read_key(self._endpoint)
        try:
            async for chunk in chunks:
                yield parse_chunk(to_json(plain(chunk)).decode())
        except ProviderError:
            raise
        except Exception as error:
            raise self._failure(error, key, uncertain=True) from error

    def counts(self, request: WireRequest) -> bool:
        return False

    async def exchange(self, request: WireRequest, bill: Bill, meter: Meter) -> ChatReply:
        key, sdk = read_key(self._endpoint), await self._loaded()
        try:
            async with asyncio.timeout(self._endpoint.timeout):
                reply = await self._translated(sdk, request, key)
        except TimeoutError as error:
            raise unusable(f"no whole reply within {self._endpoint.timeout:g} s") from error
        return reply_of(rules_of(request.dialect), request, plain(reply))

    async def events(self, request: WireRequest, bill: Bill, meter: Meter) -> AsyncIterator[bytes]:
        key, sdk = read_key(self._endpoint), await self._loaded()
        passing = Passing(rules_of(request.dialect), request, meter)
        try:
            async with asyncio.timeout(self._endpoint.timeout):
                stream = await self._translated(sdk, request, key)
                try:
                    async for events in events_from(stream):
                        if said := passing.said(events):
                            yield said
                except ProviderError:
                    raise
                except Exception as error:
                    if not passing.is_ended:  # else only the SDK's own accounts failed
                        raise self._failure(error, key, uncertain=True) from error
            meter.reply = reply_of(rules_of(request.dialect), request, passing.ended())
        except TimeoutError as error:
            raise unusable(f"no whole reply within {self._endpoint.timeout:g} s") from error
        finally:
            passing.tell()

    async def _loaded(self) -> Any:
        """Return the SDK. Its import takes seconds, and is not held against a provider."""
        return self._sdk or await asyncio.to_thread(load_sdk)

    async def _translated(self, sdk: Any, request: WireRequest, key: ApiKey | None) -> Any:
        terms = {
            **address_of(self._endpoint, request.model, request.dialect),
            "api_key": self._key_for_sdk(key),
            "timeout": self._endpoint.timeout,
            "num_retries": 0,
            "max_retries": 0,
        }
        try:
            return await translated(sdk, request, terms)
        except ProviderError:
            raise
        except Exception as error:
            raise self._failure(error, key, uncertain=False) from error

    async def _call(self, request: ChatRequest, *, stream: bool) -> Any:
        key, sdk = read_key(self._endpoint), await self._loaded()
        fields = request.model_dump(mode="json", exclude={"extra", "model"}, exclude_none=True)
        try:
            return await sdk.acompletion(
                **address_of(self._endpoint, request.model, "chat"),
                api_key=self._key_for_sdk(key),
                timeout=self._endpoint.timeout,
                num_retries=0,
                max_retries=0,
                stream=stream,
                **({"stream_options": {"include_usage": True}} if stream else {}),
                **request.extra,
                **fields,
            )
        except Exception as error:
            raise self._failure(error, key, uncertain=False) from error

    def _key_for_sdk(self, key: ApiKey | None) -> str | None:
        if key is not None:
            return key.reveal()
        # The SDK would send a key of the environment to an address that is not its owner's.
        return None if self._endpoint.base_url is None else "none"

    def _failure(self, error: Exception, key: ApiKey | None, *, uncertain: bool) -> ProviderError:
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
    # It looks for its own proxy at each call, and reads and compiles all of it only to find that it
    # cannot be imported: a sixth of a second of CPU.
    sys.modules.setdefault("litellm.proxy.proxy_server", None)  # type: ignore[arg-type]
    sdk: Any = importlib.import_module("litellm")
    sdk.telemetry = False
    sdk.suppress_debug_info = True
    sdk.drop_params = False
    # It takes 100 equal chunks for a model that repeats itself, and cuts a stream that is fine.
    sdk.REPEATED_STREAMING_CHUNK_LIMIT = 1_000_000
    # Its own accounts of calls, which nobody reads, fail in ways that it logs with a trace each.
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
    return sdk
