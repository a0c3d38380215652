from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fde_ray.llm.http_endpoint import HttpEndpoint
from fde_ray.llm.litellm_client import LiteLLM
from fde_ray.llm.offline import OfflineProvider
from fde_ray.llm.router import ModelRouter, matches
from fde_ray.model.chat import Bill, ChatRequest
from fde_ray.model.errors import ProviderError
from fde_ray.model.failures import FailureKind
from fde_ray.model.profile import Endpoint
from fde_ray.model.states import Role
from tests.store.builders import ManualClock

BILL = Bill(run_id="r", subject="r.1", role=Role.AGENT, case_id="017")
REQUEST = ChatRequest(model="acme/big", messages=({"role": "user", "content": "hi"},))


def no_probe(case_id: str, name: str) -> Any:
    raise AssertionError("not asked for")


async def test_the_first_endpoint_that_matches_serves_a_model() -> None:
    offline = OfflineProvider(no_probe)
    router = ModelRouter(
        (
            Endpoint(match="acme/big", base_url="http://127.0.0.1:1/v1"),
            Endpoint(match="acme/*", base_url="http://127.0.0.1:2/v1"),
        ),
        offline,
    )
    assert router.client_for("offline/x") is offline
    assert isinstance(router.client_for("acme/big"), HttpEndpoint)
    assert router.client_for("acme/big") is router.client_for("acme/big")
    assert router.client_for("acme/small") is not router.client_for("acme/big")
    assert isinstance(router.client_for("other/model"), LiteLLM)
    await router.aclose()


def test_a_pattern_is_a_name_or_a_prefix() -> None:
    assert matches("acme/*", "acme/big")
    assert matches("*", "anything")
    assert not matches("acme", "acme/big")


class FakeSdk:
    """Stands for the litellm module."""

    def __init__(self, outcome: Any) -> None:
        self.outcome, self.sent = outcome, []

    async def acompletion(self, **fields: Any) -> Any:
        self.sent.append(fields)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


async def test_the_sdk_is_told_not_to_retry_and_when_to_give_up() -> None:
    sdk = FakeSdk({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]})
    client = LiteLLM(Endpoint(match="*", timeout="30s"), ManualClock(), sdk)
    assert (await client.complete(REQUEST, BILL)).text == "hi"
    (sent,) = sdk.sent
    assert (sent["num_retries"], sent["max_retries"], sent["timeout"]) == (0, 0, 30.0)
    assert sent["model"] == "acme/big"


@pytest.mark.parametrize("base_url", [None, "http://127.0.0.1:1/v1"], ids=["sdk", "http"])
async def test_an_endpoint_has_as_many_places_as_the_profile_says(base_url: str | None) -> None:
    endpoint = Endpoint(match="acme/*", max_parallel=2, base_url=base_url)
    router = ModelRouter([endpoint], OfflineProvider(no_probe), ManualClock())
    released, inside = asyncio.Event(), []

    async def call(model: str) -> None:
        async with router.place(model):
            inside.append(model)
            await released.wait()

    calls = [asyncio.create_task(call(f"acme/{n}")) for n in range(5)]
    calls += [asyncio.create_task(call("offline/x")) for _ in range(100)]
    await asyncio.sleep(0.05)
    under_way = sorted(set(inside)), len(inside)
    released.set()
    await asyncio.gather(*calls)
    assert under_way == (["acme/0", "acme/1", "offline/x"], 102)
    assert len(inside) == 105
    await router.aclose()


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, FailureKind.PROVIDER_REJECTED),
        (429, FailureKind.PROVIDER_UNAVAILABLE),
        (None, FailureKind.PROVIDER_UNAVAILABLE),
        ("weird", FailureKind.PROVIDER_UNAVAILABLE),
    ],
)
async def test_errors_of_the_sdk_are_translated(status: Any, kind: FailureKind) -> None:
    error = RuntimeError("no")
    error.status_code = status  # type: ignore[attr-defined]
    client = LiteLLM(Endpoint(match="*"), ManualClock(), FakeSdk(error))
    with pytest.raises(ProviderError) as caught:
        await client.complete(REQUEST, BILL)
    assert caught.value.kind is kind


async def test_a_stream_of_the_sdk_keeps_usage_and_translates_its_cut() -> None:
    async def chunks() -> Any:
        yield {"choices": [{"delta": {"content": "a"}}]}
        raise RuntimeError("cut")

    client = LiteLLM(Endpoint(match="*"), ManualClock(), FakeSdk(chunks()))
    stream = client.stream(REQUEST, BILL)
    assert (await anext(stream))["choices"]
    with pytest.raises(ProviderError, match="cut") as caught:
        await anext(stream)
    assert caught.value.uncertain
