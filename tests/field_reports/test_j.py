"""J01 to J06 of the field reports: what judges and simulated customers did to others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fde_ray.customer import answer_question
from fde_ray.grading.judging import judge
from fde_ray.model.dialogue import Unit
from fde_ray.model.errors import RunFailure
from fde_ray.model.failures import FailureKind
from fde_ray.model.grading import JudgeBallot
from fde_ray.model.specs import Customer
from fde_ray.model.states import Phase, SolveEnd
from fde_ray.protocol import coverage
from fde_ray.protocol.packs import builtin_pack
from fde_ray.protocol.replies import MalformedReply
from tests.customer.chats import ScriptedChat, replies
from tests.engine.chats import FailingChat
from tests.engine.drivers import make_spec, make_stage, opened, result, submitted, worked
from tests.engine.stage import Agent
from tests.engine.virtual import played
from tests.grading.test_judging import MODELS, POINTS, UNITS, YES, bound

PACK = builtin_pack()
MARKER = PACK.render("heading_marker").strip()


@pytest.mark.parametrize(
    "text",
    ["I think it is covered.", '{"covered":', '{"rationale": "x"}', ""],
    ids=["prose", "truncated", "no-verdict", "empty"],
)
async def test_j01_a_verdict_that_cannot_be_read_is_missing_and_asked_for_once_more(
    text: str,
) -> None:
    chat = replies(text)
    ballots = (await judge(bound(chat), PACK, POINTS[:1], UNITS, MODELS[:1]))["width"]
    assert len(chat.requests) == 2
    (ballot,) = ballots
    assert ballot.covered is None
    assert "malformed twice" in (ballot.error or "")
    mended = replies(text, YES)
    (ballot,) = (await judge(bound(mended), PACK, POINTS[:1], UNITS, MODELS[:1]))["width"]
    assert ballot.covered is True


@pytest.mark.parametrize(
    "text",
    [f"```json\n{YES}\n```", f"Here is my verdict:\n{YES}", f"{YES}\nThat is all."],
    ids=["fence", "preamble", "closing-words"],
)
def test_j02_an_object_in_a_fence_or_after_words_is_read(text: str) -> None:
    assert coverage.parse_ballot(0, "m", text, 2).covered is True


def test_j02_single_quotes_are_missing_and_never_wrong() -> None:
    text = "{'covered': true, 'attempted': true, 'question_indices': [1]}"
    with pytest.raises(MalformedReply):
        coverage.parse_ballot(0, "m", text, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"covered": "true"},
        {"covered": "0.8"},
        {"covered": 1},
        {"covered": 7},
        {"question_indices": ["1"]},
        {"question_indices": "1"},
        {"question_indices": [1.5]},
        {"verdict": {"covered": True}, "covered": None},
    ],
    ids=str,
)
def test_j03_a_value_of_another_type_is_missing_and_never_a_guess(
    changes: dict[str, object],
) -> None:
    with pytest.raises(MalformedReply):
        coverage.parse_ballot(0, "m", json.dumps(json.loads(YES) | changes), 2)


def test_j03_an_index_out_of_range_counts_for_nothing() -> None:
    text = json.dumps(json.loads(YES) | {"question_indices": [7, 2]})
    ballots = [coverage.parse_ballot(n, "m", text, 2) for n in range(5)]
    found = coverage.tally(POINTS[:1], {"width": ballots}, UNITS)
    assert found is not None
    assert found[0].matched_units == (2,)


def ballot(judge_: int, covered: bool | None) -> JudgeBallot:
    if covered is None:
        return coverage.missing_ballot(judge_, "m", "down")
    return JudgeBallot(
        judge=judge_, model="m", covered=covered, attempted=covered, question_indices=(1,)
    )


@pytest.mark.parametrize(
    ("said", "covered"),
    [
        ([True, True, False, False, None], False),
        ([True, None, None, None, None], False),
        ([True, True, True, None, None], True),
        ([None] * 5, None),
    ],
    ids=["two-two-error", "one-and-four-errors", "three", "all-errors"],
)
def test_j04_three_of_five_must_agree_and_errors_are_no_votes(
    said: list[bool | None], covered: bool | None
) -> None:
    ballots = {"width": [ballot(n, one) for n, one in enumerate(said)]}
    found = coverage.tally(POINTS[:1], ballots, (Unit(index=1, turn=1, text="?"),))
    assert (None if found is None else found[0].covered) == covered


def test_j05_a_customer_that_says_goodbye_ends_nothing(tmp_path: Path) -> None:
    class Goodbye(FailingChat):
        async def complete(self, request, bill):  # type: ignore[no-untyped-def]
            reply = await self._offline.complete(request, bill)
            if bill.role.value != "customer":
                return reply
            return reply.evolve(message={"role": "assistant", "content": "Yes. ###STOP###"})

    async def solve(agent: Agent) -> None:
        await agent.start()
        for question in ("May I?", "And then?"):
            reply = await agent.say(f"{MARKER}\n- {question}", delivered=False)
            assert "###STOP###" in (reply or "")
        await agent.say("Done.")
        await agent.deliver({"answer.txt": b"0.5"})

    async def main() -> None:
        chat = Goodbye("nobody", RuntimeError())  # type: ignore[arg-type]
        async with opened(tmp_path, make_stage(solve), chat=chat) as runtime:
            (status,) = await worked(
                runtime, await submitted(runtime, make_spec(conditions=["interact_req"]))
            )
            assert status.runs[0].phase is Phase.DONE
            found = await result(runtime)
            assert (found.solve_end, len(found.rounds)) == (SolveEnd.SUBMITTED, 2)

    played(main)


async def asked(chat: ScriptedChat) -> str:
    customer = Customer(model="p/customer", failure="infra")
    return (await answer_question(chat, PACK, customer, "Do it.", "Facts.", (), "Why?")).text


async def test_j06_an_empty_answer_is_asked_for_once_more_then_it_is_infrastructure() -> None:
    chat = replies("", "Because.")
    assert await asked(chat) == "Because."
    assert len(chat.requests) == 2
    chat = replies("", "", "Because.")
    with pytest.raises(RunFailure) as caught:
        await asked(chat)
    assert caught.value.kind is FailureKind.CUSTOMER_FAILED
    assert len(chat.requests) == 2


def test_j06_the_cost_of_every_try_is_kept(tmp_path: Path) -> None:
    class Silent(FailingChat):
        """Two empty answers, then one."""

        async def complete(self, request, bill):  # type: ignore[no-untyped-def]
            reply = await self._offline.complete(request, bill)
            if bill.role.value != "customer":
                return reply
            self.failed += 1
            said = "" if self.failed == 1 else "Because."
            return reply.evolve(message={"role": "assistant", "content": said})

    async def solve(agent: Agent) -> None:
        await agent.start()
        await agent.say(f"{MARKER}\n- Why?", delivered=False)
        await agent.say("Done.")
        await agent.deliver({"answer.txt": b"0.5"})

    async def main() -> None:
        chat = Silent("nobody", RuntimeError())  # type: ignore[arg-type]
        async with opened(tmp_path, make_stage(solve), chat=chat) as runtime:
            await worked(runtime, await submitted(runtime, make_spec(conditions=["interact_req"])))
            (line,) = [one for one in (await result(runtime)).cost if one.role == "customer"]
            assert line.calls == 2

    played(main)
