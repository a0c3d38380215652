"""What the solving agent reads under each information condition (protocol rules 2-4; A.9.1)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from fde_ray.model.specs import Condition
from fde_ray.model.states import ConditionKind

from .packs import PromptPack

ORACLE_SEED = 12345
NONE = "(none)"


def oracle_points(
    case_slug: str, repeat: int, percent: int, keys: Sequence[str]
) -> tuple[str, ...]:
    """Return the keys whose answers an oracle run gets, in registry order.

    repeat counts from 1; percent is an integer from 0 to 100. Subsets of one (case, repeat) are
    nested in percent and the same for every system.
    """
    if not 0 <= percent <= 100:
        raise ValueError(f"percent is an integer from 0 to 100, not {percent}")
    count = -(-percent * len(keys) // 100)

    def place(key: str) -> str:
        text = f"{ORACLE_SEED}:{case_slug}:{repeat}:{key}"
        return hashlib.sha256(text.encode()).hexdigest()

    drawn = set(sorted(keys, key=place)[:count])
    return tuple(key for key in keys if key in drawn)


def solving_prompt(
    pack: PromptPack,
    condition: Condition,
    *,
    workspace: str,
    data_files: Iterable[str],
    instruction: str,
    information: str,
    answers: Sequence[str],
) -> str:
    """Return the whole prompt of the agent.

    data_files: names directly under `data/`, in any order. answers: the drawn answer sentences in
    registry order. `information` enters the text under Full only, `answers` under Oracle only.
    """
    return pack.render(
        "base",
        workspace=workspace,
        data_files=_bullets(sorted(data_files)),
        request_block=pack.render("request_block", instruction=instruction.strip()),
        condition_block=_condition_block(pack, condition.kind, information, answers),
    )


def _condition_block(
    pack: PromptPack, kind: ConditionKind, information: str, answers: Sequence[str]
) -> str:
    name = f"condition_{kind.value}"
    if kind is ConditionKind.FULL:
        return pack.render(name, information=information.strip())
    if kind is ConditionKind.ORACLE:
        return pack.render(name, answers=_bullets(answers))
    if kind.has_questions:
        return pack.render(name, heading_marker=pack.render("heading_marker"))
    return pack.render(name)


def _bullets(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items) or NONE
