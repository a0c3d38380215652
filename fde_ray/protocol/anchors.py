"""The forms by which the offline provider finds its inputs in the built-in prompts.

The texts of the built-in pack keep these forms; a test renders each and reads it back. Another
pack need not keep them, and then cannot be answered offline.
"""

from __future__ import annotations

import re
from typing import NamedTuple

INSTRUCTION_TAGS = ("<instruction>", "</instruction>")
INFORMATION_TAGS = ("<information>", "</information>")
REQUIREMENT = re.compile(r"REQUIREMENT \(id: (?P<id>[^)\n]*)\)\n")
TRIGGERS_HEADING = "EXAMPLE QUESTIONS"
QUESTIONS_HEADING = "QUESTIONS ASKED"
QUESTIONS_END = "END OF QUESTIONS"
REPLY_BEGIN = "----- BEGIN REPLY -----"
REPLY_END = "----- END REPLY -----"
_TRIGGER = re.compile(r"^ *- (.*)$", re.MULTILINE)
_NUMBERED = re.compile(r"^(\d+)\. (.*)$", re.MULTILINE)


class Knowledge(NamedTuple):
    """What the customer's system prompt says it knows."""

    instruction: str
    information: str


class Judged(NamedTuple):
    """What a judge's user message asks about. `questions`: (1-based number, text)."""

    requirement_id: str
    requirement: str
    triggers: tuple[str, ...]
    questions: tuple[tuple[int, str], ...]


def customer_knowledge(system_text: str) -> Knowledge | None:
    """Return both knowledge blocks, or None when the text has not the built-in form."""
    instruction = _between_lines(system_text, *INSTRUCTION_TAGS)
    information = _between_lines(system_text, *INFORMATION_TAGS)
    if instruction is None or information is None:
        return None
    return Knowledge(instruction, information)


def judged(user_text: str) -> Judged | None:
    """Return the parts of a judge's user message, or None when it has not the built-in form."""
    head = REQUIREMENT.search(user_text)
    if head is None:
        return None
    body = user_text[head.end() :]
    before, found, rest = body.partition(f"\n{QUESTIONS_HEADING}")
    asked = rest.rpartition(f"\n{QUESTIONS_END}")[0]
    if not found:
        return None
    requirement, _, triggers = before.partition(f"\n{TRIGGERS_HEADING}")
    return Judged(
        requirement_id=head["id"],
        requirement=requirement.strip(),
        triggers=tuple(text.strip() for text in _TRIGGER.findall(triggers)),
        questions=tuple((int(number), text) for number, text in _NUMBERED.findall(asked)),
    )


def detected_reply(user_text: str) -> str | None:
    """Return the agent's reply inside a detector's user message, or None."""
    return _between_lines(user_text, REPLY_BEGIN, REPLY_END)


def _between_lines(text: str, begin: str, end: str) -> str | None:
    """Return what stands between the first line `begin` and the last line `end` after it."""
    text = f"\n{text}\n"
    _, found, rest = text.partition(f"\n{begin}\n")
    inside, closed, _ = f"\n{rest}".rpartition(f"\n{end}\n")
    return inside.removeprefix("\n") if found and closed else None
