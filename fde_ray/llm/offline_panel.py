"""The offline detector and judge: JSON ballots from words alone. Deterministic."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from fde_ray.protocol.anchors import detected_reply, judged

from .offline_matching import covers, touches

_CODE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_QUESTION = re.compile(r"[^.!?？\n]*[?？]")
_SECOND_PERSON = re.compile(r"\b(you|your|yours|client)\b", re.IGNORECASE)
_OFFER = re.compile(
    r"\b(would you like|do you want me|shall i|should i also|want me to|happy to|let me know)\b",
    re.IGNORECASE,
)
_OPEN = re.compile(
    r"^\W*(what|which|when|where|who|whom|whose|how|is|are|do|does|did|may|must|can|could|should"
    r"|shall|has|have|will|would|at what|by what|in which|from which)\b",
    re.IGNORECASE,
)


def detector_reply(messages: Sequence[dict[str, Any]]) -> str | None:
    """Return a detector's JSON; None when this is no detector's prompt."""
    text = detected_reply(_last_user(messages))
    if text is None:
        return None
    questions = asked_questions(text)
    return json.dumps({"asking": bool(questions), "questions": questions}, ensure_ascii=False)


def asked_questions(text: str) -> list[str]:
    """Return the questions at the end of a reply that wait for the client's word.

    A question that more prose follows is rhetoric: the reply answers it itself.
    """
    found: list[str] = []
    for paragraph in reversed(_CODE.sub(" ", text).split("\n")):
        line = paragraph.strip()
        if not line:
            continue
        questions = [" ".join(q.split()).lstrip("-*0123456789.) ") for q in _QUESTION.findall(line)]
        tail = re.split(r"[?？]", line)[-1]
        if not questions or re.search(r"\w{3,}", tail):
            break
        found = [q for q in questions if _waits_for_an_answer(q)] + found
    return found


def judge_reply(messages: Sequence[dict[str, Any]]) -> str | None:
    """Return a judge's JSON; None when this is no judge's prompt."""
    task = judged(_last_user(messages))
    if task is None:
        return None
    matching = [n for n, text in task.questions if covers(text, task.requirement, task.triggers)]
    attempted = bool(matching) or any(
        touches(text, task.requirement, task.triggers) for _, text in task.questions
    )
    return json.dumps(
        {"attempted": attempted, "covered": bool(matching), "question_indices": matching}
    )


def _waits_for_an_answer(question: str) -> bool:
    if _OFFER.search(question):
        return False
    return bool(_OPEN.search(question) or _SECOND_PERSON.search(question))


def _last_user(messages: Sequence[dict[str, Any]]) -> str:
    users = [m for m in messages if m.get("role") == "user"]
    content = users[-1].get("content") if users else ""
    return content if isinstance(content, str) else ""
