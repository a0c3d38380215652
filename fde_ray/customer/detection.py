"""The five detectors' ballots on a text reply (protocol rule 8)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fde_ray.model.chat import ChatRequest
from fde_ray.model.dialogue import Ballot
from fde_ray.model.errors import ProviderError
from fde_ray.protocol import detector
from fde_ray.protocol.packs import PromptPack
from fde_ray.protocol.replies import MalformedReply

from .answers import BoundChat


async def detect(
    chat: BoundChat, pack: PromptPack, models: Sequence[str], text: str
) -> tuple[Ballot, ...]:
    """Return one ballot per model, in panel order; a missing one says why in `error`.

    text: the whole reply; the prompt clips it. Malformed JSON is asked for once more.
    """
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_ballot(chat, pack, model, text), name=f"detector-{number}")
                for number, model in enumerate(models)
            ]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return tuple(task.result() for task in tasks)


async def _ballot(chat: BoundChat, pack: PromptPack, model: str, text: str) -> Ballot:
    try:
        reply = await _reply(chat, model, detector.messages(pack, text))
        try:
            return detector.parse_ballot(model, reply)
        except MalformedReply:
            repair = await _reply(chat, model, detector.repair_messages(pack, text))
            return detector.parse_ballot(model, repair)
    except MalformedReply as error:
        return detector.missing_ballot(model, f"malformed twice: {error.reason}")
    except ProviderError as error:
        return detector.missing_ballot(model, str(error))


async def _reply(chat: BoundChat, model: str, messages: Sequence[dict[str, object]]) -> str:
    request = ChatRequest(model=model, messages=tuple(messages), max_tokens=detector.MAX_TOKENS)
    return (await chat(request)).text
