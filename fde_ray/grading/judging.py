"""The five coverage judges: one call per judge and point (protocol rules 26 to 28)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from fde_ray.cases.records import Point
from fde_ray.model.chat import ChatReply, ChatRequest
from fde_ray.model.dialogue import Unit
from fde_ray.model.errors import ProviderError
from fde_ray.model.grading import JudgeBallot
from fde_ray.protocol import coverage
from fde_ray.protocol.packs import PromptPack
from fde_ray.protocol.replies import MalformedReply

BoundChat = Callable[[ChatRequest], Awaitable[ChatReply]]
ChatFor = Callable[[int, str], BoundChat]
"""(judge, point key) -> the chat that is billed and named for this pair."""


async def judge(
    chat_for: ChatFor,
    pack: PromptPack,
    points: Sequence[Point],
    units: Sequence[Unit],
    models: Sequence[str],
) -> dict[str, tuple[JudgeBallot, ...]]:
    """Return the ballots by point key, in judge order; empty when no question was recorded.

    How many calls run at once is up to the chats. A missing ballot says why in `error`.
    """
    if not units:
        return {}
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {
                point.key: [
                    group.create_task(
                        _ballot(chat_for(number, point.key), pack, point, units, number, model),
                        name=f"judge-{number}-{point.key}",
                    )
                    for number, model in enumerate(models)
                ]
                for point in points
            }
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return {key: tuple(task.result() for task in row) for key, row in tasks.items()}


async def _ballot(
    chat: BoundChat,
    pack: PromptPack,
    point: Point,
    units: Sequence[Unit],
    number: int,
    model: str,
) -> JudgeBallot:
    subject = (pack, point.key, point.requirement, point.triggers, tuple(units))
    try:
        text = await _reply(chat, model, coverage.messages(*subject))
        try:
            return coverage.parse_ballot(number, model, text, len(units))
        except MalformedReply:
            text = await _reply(chat, model, coverage.repair_messages(*subject))
            return coverage.parse_ballot(number, model, text, len(units))
    except MalformedReply as error:
        reason = f"malformed twice: {error.reason}"
    except ProviderError as error:
        reason = str(error)
    return coverage.missing_ballot(number, model, reason)


async def _reply(chat: BoundChat, model: str, messages: Sequence[dict[str, object]]) -> str:
    request = ChatRequest(model=model, messages=tuple(messages), temperature=coverage.TEMPERATURE)
    return (await chat(request)).text
