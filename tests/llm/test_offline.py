"""The offline provider reads the built-in prompts and always says the same."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from fde_ray.llm.offline import OfflineProvider
from fde_ray.llm.offline_extractor import extraction_task
from fde_ray.metering.chunks import ReplyBuilder
from fde_ray.model.chat import Bill, ChatReply, ChatRequest
from fde_ray.model.dialogue import Unit
from fde_ray.model.errors import CaseError, ProviderError
from fde_ray.model.failures import FailureKind
from fde_ray.model.states import Role
from fde_ray.protocol import coverage, customer, detector, extraction
from fde_ray.protocol.packs import builtin_pack
from fde_ray.protocol.questions import text_questions

PACK = builtin_pack()
MARKER = PACK.render("heading_marker")
INFORMATION = """# The mill

Rolls wear. A roll set may roll at most 22 km of strip before it is replaced.

- A promised date means loaded by 06:00 of that day.
- Finish E goes to car makers.
"""


@dataclass
class FakeProbe:
    rounds: tuple[tuple[str, ...], ...] = ()
    summary: str = "See plan.csv."
    files: dict[str, bytes] = field(default_factory=dict)


PROBES = {
    "do_nothing": FakeProbe(summary=""),
    "asks": FakeProbe(
        rounds=(("How long is it?", "How\nwide?"), ("When?",)),
        files={"plan.csv": b"a,b\n1,2\n", "raw.bin": b"\x00\xff\r\n", "dos.csv": b"a\r\n1\r\n"},
    ),
}


def probe_of(case_id: str, name: str) -> FakeProbe:
    if name not in PROBES:
        raise CaseError("cases/017", f"no probe {name!r}")
    return PROBES[name]


PROVIDER = OfflineProvider(probe_of)


def bill(role: Role) -> Bill:
    return Bill(run_id="r", subject="r.1", role=role, case_id="017")


async def asked(
    messages: list[dict[str, Any]], role: Role, model: str = "offline/any"
) -> ChatReply:
    request = ChatRequest(model=model, messages=tuple(messages))
    first = await PROVIDER.complete(request, bill(role))
    assert await PROVIDER.complete(request, bill(role)) == first, "not deterministic"
    builder = ReplyBuilder(model)
    async for chunk in PROVIDER.stream(request, bill(role)):
        builder.add(chunk)
    assert builder.reply().message.get("content") == first.message.get("content")
    assert first.usage.source == "offline"
    return first


async def customer_says(question: str) -> str:
    messages = customer.messages(PACK, "Plan the mill.", INFORMATION, [("Hm?", "So.")], question)
    return (await asked(messages, Role.CUSTOMER)).text


async def test_the_customer_answers_with_the_sentence_that_matches() -> None:
    answer = await customer_says("How many km of strip may a roll set roll?")
    expected = "A roll set may roll at most 22 km of strip before it is replaced."
    assert answer == f"[offline] {expected}"
    assert "06:00" in await customer_says("What hour of the promised date counts?")


@pytest.mark.parametrize(
    "question", ["Which colour has your logo?", "Anything special?", "", "???", "x" * 100_000]
)
async def test_the_customer_has_a_word_for_what_nobody_wrote_down(question: str) -> None:
    answer = await customer_says(question)
    assert answer == "[offline] Do what is usual and sensible in a business like ours."


async def judged(units: list[str], requirement: str, triggers: list[str]) -> Any:
    listed = [Unit(index=i, turn=1, text=text) for i, text in enumerate(units, 1)]
    messages = coverage.messages(PACK, "p1", requirement, triggers, listed)
    reply = await asked(messages, Role.JUDGE)
    repaired = coverage.repair_messages(PACK, "p1", requirement, triggers, listed)
    assert (await asked(repaired, Role.JUDGE)).text == reply.text
    return coverage.parse_ballot(0, "offline/any", reply.text, len(units))


async def test_the_judge_covers_by_units_that_name_the_fact() -> None:
    ballot = await judged(
        ["Anything special about the data?", "How many km may a roll set roll?", "Which colour?"],
        "How many kilometres of strip one roll set may roll at most.",
        ["How many km of strip may one roll set roll?", "When is a roll set replaced?"],
    )
    assert (ballot.covered, ballot.attempted, ballot.question_indices) == (True, True, (2,))


async def test_the_judge_covers_nothing_by_vague_units() -> None:
    ballot = await judged(
        ["What are your rules for the rolls?", "Is anything odd about the rolls or strip?"],
        "How many kilometres of strip one roll set may roll at most.",
        ["How many km of strip may one roll set roll?"],
    )
    assert (ballot.covered, ballot.question_indices) == (False, ())


@pytest.mark.parametrize(
    ("reply", "questions"),
    [
        ("Before I start: which unit do you use for length?", 1),
        ("I need two things.\n- Is tax part of the price?\n- Which year counts?", 2),
        ("Why so few shifts? Because two lines were down.", 0),
        ("All done. Would you like a chart as well?", 0),
        ("Done: plan.csv holds the plan.", 0),
        ("```\nwhat is this?\n```\nThe file is plan.csv.", 0),
        ("Is it net or gross?\n\nI assumed net and wrote plan.csv.", 0),
    ],
)
async def test_the_detector_tells_asking_from_reporting(reply: str, questions: int) -> None:
    said = (await asked(detector.messages(PACK, reply), Role.DETECTOR)).text
    ballot = detector.parse_ballot("offline/any", said)
    assert (ballot.asking, len(ballot.questions)) == (bool(questions), questions)
    repaired = await asked(detector.repair_messages(PACK, reply), Role.DETECTOR)
    assert repaired.text == said


def carried_out(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The replies of the tools to an assistant message."""
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
        for call in message.get("tool_calls", ())
    ]


async def played(probe: str, prompt: str, turns: int) -> tuple[list[str], dict[str, bytes]]:
    """Return what the agent said over `turns` turns and the files it wrote."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "tools"},
        {"role": "user", "content": prompt},
    ]
    said: list[str] = []
    files: dict[str, bytes] = {}
    while len(said) < turns:
        message = (await asked(messages, Role.AGENT, f"offline/{probe}")).message
        messages.append(message)
        for call in message.get("tool_calls", ()):
            fields = json.loads(call["function"]["arguments"])
            data = fields["text"].encode() if "text" in fields else None
            files[fields["path"]] = data or base64.b64decode(fields.get("base64", ""))
        messages += carried_out(message)
        if not message.get("tool_calls"):
            said.append(message["content"])
            messages.append({"role": "user", "content": "Go on."})
    return said, files


async def test_an_agent_asks_its_rounds_then_writes_then_sums_up() -> None:
    said, files = await played("asks", f"Ask below {MARKER} if you like.", 4)
    assert text_questions(said[0], MARKER) == ("How long is it?", "How wide?")
    assert text_questions(said[1], MARKER) == ("When?",)
    assert said[2:] == ["See plan.csv.", "See plan.csv."]
    assert files == PROBES["asks"].files


async def test_an_agent_without_a_channel_writes_at_once() -> None:
    said, files = await played("asks", "Nobody can be asked.", 1)
    assert said == ["See plan.csv."]
    assert files == PROBES["asks"].files


async def test_do_nothing_replies_with_plain_words_each_time() -> None:
    said, files = await played("do_nothing", f"Ask below {MARKER}.", 4)
    assert len(set(said)) == 1
    assert said[0].strip()
    assert MARKER not in said[0]
    assert not files


async def test_an_agent_survives_odd_messages_in_its_history() -> None:
    history = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "tool_calls": "x"},
        {"role": "assistant", "tool_calls": [1, {"function": {}}, {"function": {"name": "write"}}]},
        {"role": "tool"},
        {"role": "user", "content": [{"type": "text", "text": "part"}]},
    ]
    reply = await asked(history, Role.AGENT, "offline/asks")
    assert len(reply.message["tool_calls"]) == 3


@pytest.mark.parametrize("role", list(Role))
async def test_what_has_no_known_form_is_rejected(role: Role) -> None:
    request = ChatRequest(
        model="offline/unknown", messages=({"role": "user", "content": "make tea"},)
    )
    with pytest.raises(ProviderError) as caught:
        await PROVIDER.complete(request, bill(role))
    assert caught.value.kind is FailureKind.PROVIDER_REJECTED


def extractor_prompt(schema: str) -> str:
    return extraction.prompt(
        PACK,
        schema,
        workspace="/workspace",
        data_dir="/case/data",
        instruction="/case/instruction.md",
        information="/case/information.md",
        output_dir="/out",
    )


def test_the_extractor_reads_its_task_from_the_built_in_prompt() -> None:
    schema = {"files": [{"name": "a ``` b", "fields": [{"unit": "}\n```"}]}]}
    task = extraction_task(extractor_prompt(json.dumps(schema, indent=2)))
    assert task is not None
    assert task.schema == schema
    assert (task.workspace, task.data_dir, task.output_dir) == ("/workspace", "/case/data", "/out")


@pytest.mark.parametrize("schema", ["[]", "{", "", "{}x"])
def test_the_extractor_takes_no_prompt_with_a_broken_schema(schema: str) -> None:
    assert extraction_task(extractor_prompt(schema)) is None


async def test_the_extractor_maps_once_and_then_ends() -> None:
    messages = [{"role": "user", "content": extractor_prompt('{"files": []}')}]
    message = (await asked(messages, Role.EXTRACTOR)).message
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "run"
    assert "evaluate '/out'" in json.loads(call["function"]["arguments"])["command"]
    messages += [message, *carried_out(message)]
    assert "tool_calls" not in (await asked(messages, Role.EXTRACTOR)).message
