"""Whether a text reply asks the client something: five ballots (protocol rule 8; paper A.9.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fde_ray.model.dialogue import Ballot

from . import replies
from .packs import PromptPack
from .questions import clipped, has_words
from .replies import MalformedReply

MAX_TOKENS = 2_000


def messages(pack: PromptPack, text: str) -> list[dict[str, Any]]:
    """Return the first call of a detector about an agent's reply, clipped."""
    return [
        {"role": "system", "content": pack.render("detector_system")},
        {"role": "user", "content": pack.render("detector_user", reply=clipped(text))},
    ]


def repair_messages(pack: PromptPack, text: str) -> list[dict[str, Any]]:
    """Return the one retry after a malformed reply: the repair text, then the first message."""
    system, user = messages(pack, text)
    repair = pack.render("detector_repair")
    return [system, {**user, "content": f"{repair}\n\n{user['content']}"}]


def parse_ballot(model: str, reply_text: str) -> Ballot:
    """Return the ballot; MalformedReply when the reply leaves a doubt."""
    value = replies.parse_object(reply_text)
    asking = replies.boolean(value, "asking")
    questions = tuple(q.strip() for q in replies.strings(value, "questions") if has_words(q))
    if asking != bool(questions):
        raise MalformedReply("'asking' and 'questions' contradict each other")
    return Ballot(model=model, asking=asking, questions=questions)


def missing_ballot(model: str, error: str) -> Ballot:
    return Ballot(model=model, asking=None, error=error or "no reply")


def verdict(ballots: Sequence[Ballot]) -> tuple[str, ...] | None:
    """Return the questions of the first asking ballot in panel order; None = not asking.

    Asking needs a strict majority of the returned ballots.
    """
    returned = [ballot for ballot in ballots if ballot.asking is not None]
    asking = [ballot for ballot in returned if ballot.asking]
    if 2 * len(asking) <= len(returned):
        return None
    return next((ballot.questions for ballot in asking if ballot.questions), None)
