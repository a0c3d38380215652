"""Passes calls on to an endpoint that speaks their dialect, whole or streamed; others are
translated.

aiohttp, since one request costs httpx's client some eighteen times the CPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any

import aiohttp

from fde_ray.metering.calls import Meter
from fde_ray.metering.chunks import ReplyBuilder
from fde_ray.metering.places import Place, Places, Waiting, unheard
from fde_ray.model.chat import Bill, ChatReply, ChatRequest, Usage
from fde_ray.model.clock import Clock
from fde_ray.model.errors import ProviderError
from fde_ray.model.profile import Endpoint
from fde_ray.model.wire import WireRequest

from .dialects import rules_of
from .keys import ApiKey, read_key
from .litellm_client import LiteLLM
from .passing import DONE, Passing, reply_of
from .replies import MAX_REPLY_BYTES, object_of, parse_reply, status_error, unusable
from .sse import Event, EventReader, EventTooLarge

CONNECT_TIMEOUT_S = 10.0
KEEP_ALIVE_S = 4.0
"""Shorter than servers keep an idle connection: the shortest known is 5 s."""
MAX_ERROR_BYTES = 64 * 1024
LARGE_BODY = 512 * 1024
HEADERS = {
    "content-type": "application/json",
    "accept-encoding": "identity",
    "user-agent": "fde-ray",
}


class HttpEndpoint:
    """One endpoint. The caller takes a `place` before it sends, which is no part of the timeout."""

    def __init__(self, endpoint: Endpoint, clock: Clock) -> None:
        assert endpoint.base_url is not None
        self._endpoint, self._clock = endpoint, clock
        self._base_url, self._rules = endpoint.base_url, rules_of(endpoint.dialect)
        self._places = Places(endpoint.max_parallel, clock)
        self._translator = LiteLLM(endpoint, clock)
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"HttpEndpoint({self._base_url!r})"

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def place(self, model: str, waiting: Waiting = unheard) -> Place:
        return self._places.taken(waiting)

    def counts(self, request: WireRequest) -> bool:
        is_same = request.dialect == self._endpoint.dialect
        return is_same and request.dialect in ("messages", "gemini")

    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply:
        if self._endpoint.dialect != "chat":
            return await self._translator.complete(request, bill)
        async with self._sent(wire_of(request, stream=False)) as response:
            data = await _read(response, MAX_REPLY_BYTES)
        return parse_reply(data, request.model)

    async def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]:
        """Yield the chunks of a chat reply."""
        if self._endpoint.dialect != "chat":
            async for chunk in self._translator.stream(request, bill):
                yield chunk
            return
        builder, is_done = ReplyBuilder(request.model), False
        async with self._sent(wire_of(request, stream=True)) as response:
            async for events in _event_lists(response):
                for event in events:
                    is_done = is_done or event.data == DONE
                    if not is_done and event.data:
                        chunk = object_of(event.data)
                        self._rules.fold().add(chunk)
                        builder.add(chunk)
                        yield chunk
        if not (is_done or builder.is_finished):
            raise unusable("the stream ended early")

    async def exchange(self, request: WireRequest, bill: Bill, meter: Meter) -> ChatReply:
        if request.dialect != self._endpoint.dialect:
            return await self._translator.exchange(request, bill, meter)
        async with self._sent(request) as response:
            data = await _read(response, MAX_REPLY_BYTES)
        return self._reply(request, object_of(data))

    async def events(self, request: WireRequest, bill: Bill, meter: Meter) -> AsyncIterator[bytes]:
        """Yield events as they come; usage is always asked for."""
        if request.dialect != self._endpoint.dialect:
            async for piece in self._translator.events(request, bill, meter):
                yield piece
            return
        passing = Passing(self._rules, request, meter)
        try:
            async with self._sent(request) as response:
                if response.content_type == "application/json":
                    body = object_of(await _read(response, MAX_REPLY_BYTES))
                    meter.reply = self._reply(request, body)
                    meter.tail = b"".join(self._rules.events_of(body, request))
                    return
                async for events in _event_lists(response):
                    if said := passing.said(events):
                        yield said
            meter.reply = reply_of(self._rules, request, passing.ended())
        finally:
            passing.tell()

    def _reply(self, request: WireRequest, body: dict[str, Any]) -> ChatReply:
        if request.action == "generate":
            return reply_of(self._rules, request, body)
        free = Usage(prompt_tokens=0, completion_tokens=0, source="provider")
        return ChatReply(message={}, model=request.model, usage=free, body=body)

    @asynccontextmanager
    async def _sent(self, request: WireRequest) -> AsyncIterator[aiohttp.ClientResponse]:
        key = read_key(self._endpoint)
        model = wire_model(request.model, self._endpoint)
        try:
            url = self._rules.url(self._base_url, request, model)
            headers = self._headers(request, key)
            body = self._rules.body(request, model)
            async with (
                asyncio.timeout(self._endpoint.timeout),
                self._opened().post(
                    url, data=_payload(body), headers=headers, allow_redirects=False
                ) as response,
            ):
                if response.status != 200:
                    raise await self._refusal(response, key)
                yield response
        except ProviderError as error:
            raise _masked(error, key) from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise ProviderError(f"cannot connect: {_cause(error, key)}") from error
        except aiohttp.InvalidURL as error:
            raise ProviderError(f"the request cannot be sent: {_cause(error, key)}") from error
        except EventTooLarge as error:
            raise unusable("the stream is too large") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise unusable(_cause(error, key)) from error
        except TimeoutError as error:
            raise unusable(f"no whole reply within {self._endpoint.timeout:g} s") from error
        except (ValueError, RecursionError) as error:
            raise ProviderError(f"the request cannot be sent: {_cause(error, key)}") from error

    def _headers(self, request: WireRequest, key: ApiKey | None) -> Mapping[str, str]:
        ours = self._rules.headers(None if key is None else key.reveal())
        return {**HEADERS, **ours, **dict(request.headers)}

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def _refusal(self, response: aiohttp.ClientResponse, key: ApiKey | None) -> ProviderError:
        body = await _read_some(response, MAX_ERROR_BYTES)
        after = response.headers.get("retry-after")
        if key is not None:
            body = key.masked(body.decode("utf-8", "replace")).encode()
        return status_error(response.status, body, after, self._clock.now())


def _payload(body: bytes) -> bytes | BytesIO:
    """Return what to send; a large body goes in pieces, so that other calls go on meanwhile."""
    return body if len(body) < LARGE_BODY else BytesIO(body)


def wire_of(request: ChatRequest, *, stream: bool) -> WireRequest:
    """Return a chat request of our own as it goes on the wire: only what its maker set."""
    fields = request.model_dump(mode="json", exclude={"extra", "model"}, exclude_none=True)
    body = {**request.extra, **fields}
    return WireRequest(dialect="chat", model=request.model, body=body, stream=stream)


def wire_model(model: str, endpoint: Endpoint) -> str:
    """Return the name that the endpoint knows: the profile's, else without the provider."""
    return endpoint.model or model.partition("/")[2] or model


async def _event_lists(response: aiohttp.ClientResponse) -> AsyncIterator[list[Event]]:
    """Yield the events as they come, those of one piece together."""
    reader, total = EventReader(), 0
    async for piece in response.content.iter_any():
        total += len(piece)
        if total > MAX_REPLY_BYTES:
            raise unusable("the stream is too large")
        yield reader.feed(piece)
    yield reader.close()


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    data = await _read_some(response, limit + 1)
    if len(data) > limit:
        raise unusable(f"the reply is larger than {limit} bytes")
    return data


async def _read_some(response: aiohttp.ClientResponse, limit: int) -> bytes:
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size >= limit:
            break
    return b"".join(pieces)[:limit]


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
        answer=error.answer,
    )
