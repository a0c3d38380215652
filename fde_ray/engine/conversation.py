"""Answers the turns of agents: detector votes, customer calls, the reply.

Each step is decided by `protocol.dialogue` from the log, carried out here, and appended to the log;
whoever takes over goes on from the log alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from fde_ray.customer import answer_question, detect
from fde_ray.model.chat import Bill
from fde_ray.model.dialogue import Answered, Detected, DialogueEvent, Replied
from fde_ray.model.plan import RunPlan
from fde_ray.model.states import PauseCause, Role
from fde_ray.protocol import dialogue
from fde_ray.store.runs import Epoch

from .pools import HeldTurn, Pool
from .runtime import Runtime


class Conversation:
    """The customer's side of every run."""

    def __init__(self, runtime: Runtime, customer: Pool, detectors: Pool) -> None:
        self._runtime, self._customer, self._detectors = runtime, customer, detectors

    async def answer(
        self, plan: RunPlan, subject: str, events: Sequence[DialogueEvent], epoch: Epoch
    ) -> None:
        """Carry the open turn of a session to its reply. events: its dialogue so far.

        Once the session has ended, for its clock above all, no further question is asked.
        RunFailure(CUSTOMER_FAILED) when the customer is down and the spec says `infra`.
        """
        store = self._runtime.store
        state = dialogue.replay(self.config(plan), events)
        while not isinstance(move := dialogue.next_move(state), dialogue.Idle):
            event = await self._carried_out(move, state, plan, subject)
            await store.append_event(subject, event, epoch=epoch)
            state = dialogue.advance(state, event)
            if (
                isinstance(event, Answered)
                and (await store.standing(subject)).solve_end is not None
            ):
                break

    def config(self, plan: RunPlan) -> dialogue.DialogueConfig:
        return dialogue.DialogueConfig.of(
            self._runtime.pack(plan.prompt_pack),
            has_questions=plan.condition.kind.has_questions,
            channel=plan.channel,
            max_rounds=plan.limits.rounds,
            max_pushes=plan.limits.pushes,
        )

    async def _carried_out(
        self,
        move: dialogue.Move,
        state: dialogue.DialogueState,
        plan: RunPlan,
        subject: str,
    ) -> Detected | Answered | Replied:
        if isinstance(move, dialogue.Detect):
            return await self._detected(move, state, plan, subject)
        if isinstance(move, dialogue.Ask):
            return await self._answered(move, state, plan, subject)
        assert isinstance(move, dialogue.Reply)
        return Replied(
            seq=state.seq + 1,
            at=self._runtime.clock.now(),
            turn_no=move.turn_no,
            action=move.action,
            message=move.message,
            answers=move.answers,
            solve_end=move.solve_end,
        )

    async def _detected(
        self, move: dialogue.Detect, state: dialogue.DialogueState, plan: RunPlan, subject: str
    ) -> Detected:
        chat = self._detectors.bound(
            bill_for(plan, subject, Role.DETECTOR),
            f"{subject}:detect:{move.turn_no}",
            HeldTurn(subject, move.turn_no, PauseCause.DETECTOR_DOWN),
        )
        pack = self._runtime.pack(plan.prompt_pack)
        ballots = await detect(chat, pack, plan.detectors, move.text)
        now = self._runtime.clock.now()
        return Detected(seq=state.seq + 1, at=now, turn_no=move.turn_no, ballots=ballots)

    async def _answered(
        self, move: dialogue.Ask, state: dialogue.DialogueState, plan: RunPlan, subject: str
    ) -> Answered:
        case = self._runtime.cases[plan.case_id]
        chat = self._customer.bound(
            bill_for(plan, subject, Role.CUSTOMER),
            f"{subject}:ask:{move.turn_no}.{move.index}",
            HeldTurn(subject, move.turn_no, PauseCause.CUSTOMER_DOWN),
        )
        answer = await answer_question(
            chat,
            self._runtime.pack(plan.prompt_pack),
            plan.customer,
            case.instruction,
            case.information,
            move.history,
            move.question,
        )
        return Answered(
            seq=state.seq + 1,
            at=self._runtime.clock.now(),
            turn_no=move.turn_no,
            index=move.index,
            answer=answer.text,
            placeholder=answer.placeholder,
        )


def bill_for(plan: RunPlan, subject: str, role: Role, *, graded: bool = False) -> Bill:
    return Bill(
        run_id=plan.run_id,
        subject=subject,
        role=role,
        case_id=plan.case_id,
        repeat=plan.repeat,
        grade_id=plan.grade_id if graded else None,
    )
