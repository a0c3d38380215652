"""Chooses where a call goes by the name of its model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import nullcontext
from typing import Any

from fde_ray.metering.calls import Meter, WireUpstream
from fde_ray.metering.places import Bounded, Place, Waiting, unheard
from fde_ray.metering.wires import AsWire
from fde_ray.model.chat import Bill, ChatReply, ChatRequest
from fde_ray.model.clock import Clock, SystemClock
from fde_ray.model.profile import Endpoint
from fde_ray.model.wire import WireRequest

from .client import Chat, WireChat
from .http_endpoint import HttpEndpoint
from .litellm_client import LiteLLM, knows_provider

OFFLINE = "offline/"
ANY = Endpoint(match="*")


def client_of(endpoint: Endpoint, clock: Clock) -> WireChat:
    if endpoint.base_url is not None:
        return HttpEndpoint(endpoint, clock)
    return LiteLLM(endpoint, clock)


class ModelRouter:
    """`offline/...` goes to the offline provider; else the first endpoint that matches, else
    litellm with its own addresses and keys from the environment."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        offline: Chat,
        clock: Clock | None = None,
        make_client: Callable[[Endpoint, Clock], WireChat] = client_of,
    ) -> None:
        self._endpoints = (*endpoints, ANY)
        self._offline, self._offline_wire = offline, AsWire(offline)
        self._clock = clock or SystemClock()
        self._make_client = make_client
        self._clients: dict[int, WireChat] = {}

    def place(self, model: str, waiting: Waiting = unheard) -> Place:
        """Return a place of the model's endpoint, to be taken before a call of it."""
        client = self.client_for(model)
        return client.place(model, waiting) if isinstance(client, Bounded) else nullcontext()

    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply:
        return await self.client_for(request.model).complete(request, bill)

    def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]:
        return self.client_for(request.model).stream(request, bill)

    async def exchange(self, request: WireRequest, bill: Bill, meter: Meter) -> ChatReply:
        return await self._wire_for(request.model).exchange(request, bill, meter)

    def events(self, request: WireRequest, bill: Bill, meter: Meter) -> AsyncIterator[bytes]:
        return self._wire_for(request.model).events(request, bill, meter)

    def counts(self, request: WireRequest) -> bool:
        return self._wire_for(request.model).counts(request)

    async def aclose(self) -> None:
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.aclose()

    def client_for(self, model: str) -> Chat:
        """Return the client of a model, made at its first use."""
        return self._offline if model.startswith(OFFLINE) else self._client(model)

    def _wire_for(self, model: str) -> WireUpstream:
        return self._offline_wire if model.startswith(OFFLINE) else self._client(model)

    def _client(self, model: str) -> WireChat:
        place = next(i for i, e in enumerate(self._endpoints) if matches(e.match, model))
        if place not in self._clients:
            self._clients[place] = self._make_client(self._endpoints[place], self._clock)
        return self._clients[place]


def leads_anywhere(model: str, endpoints: Sequence[Endpoint]) -> bool:
    """Whether a call of this model has an address: an endpoint's, or one that litellm knows."""
    if any(matches(e.match, model) and e.base_url is not None for e in endpoints):
        return True
    return knows_provider(model)


def matches(pattern: str, model: str) -> bool:
    """Whether `pattern`, a name or a prefix that ends in `*`, fits the model."""
    if pattern.endswith("*"):
        return model.startswith(pattern[:-1])
    return model == pattern
