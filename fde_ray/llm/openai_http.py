"""Passes calls to an OpenAI-compatible endpoint unchanged, whole or streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from fde_ray.metering.places import Place, Places, Waiting, unheard
from fde_ray.model.chat import Bill, ChatReply, ChatRequest
from fde_ray.model.clock import Clock
from fde_ray.model.errors import ProviderError
from fde_ray.model.profile import Endpoint

from .keys import ApiKey, read_key
from .replies import (
    MAX_REPLY_BYTES,
    parse_chunk,
    parse_reply,
    status_error,
    unusable,
)

CONNECT_TIMEOUT_S = 10.0
MAX_ERROR_BYTES = 64 * 1024
MAX_LINE_BYTES = 8 * 2**20


class OpenAIHttp:
    """One endpoint. The caller takes a `place` before it sends, which is no part of the timeout.

    transport: another way onto the wire, for tests.
    """

    def __init__(
        self, endpoint: Endpoint, clock: Clock, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        assert endpoint.base_url is not None
        self._endpoint, self._clock = endpoint, clock
        self._places = Places(endpoint.max_parallel, clock)
        self._url = f"{endpoint.base_url.rstrip('/')}/chat/completions"
        self._client = httpx.AsyncClient(
            transport=transport,
            timeout=httpx.Timeout(endpoint.timeout, connect=CONNECT_TIMEOUT_S, pool=None),
            limits=httpx.Limits(max_connections=None),
            follow_redirects=False,
            trust_env=False,
        )

    def __repr__(self) -> str:
        return f"OpenAIHttp({self._endpoint.base_url!r})"

    async def aclose(self) -> None:
        await self._client.aclose()

    def place(self, model: str, waiting: Waiting = unheard) -> Place:
        return self._places.taken(waiting)

    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply:
        async with self._sent(request, stream=False) as response:
            data = await _read(response, MAX_REPLY_BYTES)
        return parse_reply(data, request.model)

    async def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]:
        """Yield chunks as they come; the usage chunk is always asked for."""
        finished = False
        async with self._sent(request, stream=True) as response:
            async for data in _events(response):
                if data == "[DONE]":
                    finished = True
                    break
                chunk = parse_chunk(data)
                finished = finished or _says_finish(chunk)
                yield chunk
        if not finished:
            raise unusable("the stream ended early")

    @asynccontextmanager
    async def _sent(self, request: ChatRequest, *, stream: bool) -> AsyncIterator[httpx.Response]:
        key = read_key(self._endpoint)
        headers = {} if key is None else {"authorization": f"Bearer {key.reveal()}"}
        body = wire_body(request, self._endpoint, stream=stream)
        try:
            async with (
                asyncio.timeout(self._endpoint.timeout),
                self._client.stream("POST", self._url, json=body, headers=headers) as response,
            ):
                if response.status_code != 200:
                    raise await self._refusal(response)
                yield response
        except ProviderError as error:
            raise _masked(error, key) from error
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise ProviderError(f"cannot connect: {_cause(error, key)}") from error
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise unusable(_cause(error, key)) from error
        except TimeoutError as error:
            raise unusable(f"no whole reply within {self._endpoint.timeout:g} s") from error
        except (ValueError, RecursionError) as error:
            raise ProviderError(f"the request cannot be sent: {_cause(error, key)}") from error

    async def _refusal(self, response: httpx.Response) -> ProviderError:
        body = await _read_some(response, MAX_ERROR_BYTES)
        after = response.headers.get("retry-after")
        return status_error(response.status_code, body, after, self._clock.now())


def wire_body(request: ChatRequest, endpoint: Endpoint, *, stream: bool) -> dict[str, Any]:
    """Return the JSON that goes to the endpoint: only what the caller set."""
    fields = request.model_dump(mode="json", exclude={"extra", "model"}, exclude_none=True)
    body = {"model": wire_model(request.model, endpoint), **request.extra, **fields}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def wire_model(model: str, endpoint: Endpoint) -> str:
    """Return the name that the endpoint knows: the profile's, else without the provider."""
    return endpoint.model or model.partition("/")[2] or model


async def _events(response: httpx.Response) -> AsyncIterator[str]:
    """Yield the data of each server-sent event."""
    pending = b""
    total = 0
    async for piece in response.aiter_bytes():
        total += len(piece)
        pending += piece
        if len(pending) > MAX_LINE_BYTES or total > MAX_REPLY_BYTES:
            raise unusable("the stream is too large")
        *lines, pending = pending.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].decode("utf-8", "replace").strip()
    if pending.startswith(b"data:"):
        yield pending[5:].decode("utf-8", "replace").strip()


async def _read(response: httpx.Response, limit: int) -> bytes:
    data = await _read_some(response, limit + 1)
    if len(data) > limit:
        raise unusable(f"the reply is larger than {limit} bytes")
    return data


async def _read_some(response: httpx.Response, limit: int) -> bytes:
    data = bytearray()
    async for piece in response.aiter_bytes():
        data += piece
        if len(data) >= limit:
            break
    return bytes(data[:limit])


def _says_finish(chunk: dict[str, Any]) -> bool:
    choices = chunk.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return isinstance(first, dict) and bool(first.get("finish_reason"))


def _cause(error: Exception, key: ApiKey | None) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if key is None else key.masked(text)


def _masked(error: ProviderError, key: ApiKey | None) -> ProviderError:
    """Return the error without the key, should the provider have echoed it."""
    if key is None or key.reveal() not in error.detail:
        return error
    return ProviderError(
        key.masked(error.detail),
        kind=error.kind,
        status=error.status,
        retry_after_s=error.retry_after_s,
        uncertain=error.uncertain,
    )
