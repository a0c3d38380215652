"""The shape of one call of the simulated customer (protocol rule 13; paper A.9.2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .packs import PromptPack


def messages(
    pack: PromptPack,
    instruction: str,
    information: str,
    history: Iterable[tuple[str, str]],
    question: str,
) -> list[dict[str, Any]]:
    """Return system message, the run's earlier (question, answer) pairs, and the question."""
    system = pack.render(
        "customer_system", instruction=instruction.strip(), information=information.strip()
    )
    turns = [
        {"role": role, "content": text}
        for pair in history
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    return [
        {"role": "system", "content": system},
        *turns,
        {"role": "user", "content": question},
    ]


def placeholder_answer(pack: PromptPack) -> str:
    """Return what the agent reads when the customer's retries are spent (protocol rule 14)."""
    return pack.render("placeholder_answer")
