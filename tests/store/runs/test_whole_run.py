"""One run from its sweep to its result, call by call as the services make them."""

from __future__ import annotations

from fde_ray.model.states import GradeState, Phase, SolveEnd
from fde_ray.store.runs import Epoch, RunStore
from tests.store.builders import (
    GRADE,
    SHA,
    make_call_finish,
    make_call_start,
    make_commit,
    make_inputs,
    make_part,
    make_replied,
    make_turn,
    run_id,
)
from tests.store.runs.admitted import admitted


async def test_run_goes_from_queued_to_done(store: RunStore, epoch: Epoch) -> None:
    run = run_id(1)
    subject = f"{run}.1"
    assert await admitted(store) == [run_id(n) for n in (1, 2, 3)]
    await store.open_attempt(run, epoch, make_inputs(subject))
    await store.record_handle(subject, {"pid": 7})
    assert await store.token_serial(subject, "n1") == 1
    session = await store.session(subject)
    assert session.live
    assert session.inputs == make_inputs(subject)
    assert session.handle == {"pid": 7}
    await store.mark_agent_started(subject)
    await store.move_run(run, epoch, Phase.PROVISIONING, Phase.SOLVING)
    await store.start_call(make_call_start("c1", subject))
    await store.finish_call(make_call_finish("c1", cost_nanousd=5, source="offline"))
    await store.record_turn(subject, make_turn(), "h")
    assert await store.append_event(subject, make_replied(2), epoch=epoch)
    assert (await store.reply(subject, 1) or {})["solve_end"] == "submitted"
    await store.record_part(subject, "final", make_part())
    await store.record_commit(subject, make_commit(make_part()))
    await store.move_run(
        run, epoch, Phase.SOLVING, Phase.EXTRACTING, solve_end=SolveEnd.SUBMITTED.value
    )
    await store.close_attempt(subject, epoch)
    await store.begin_commit(run, GRADE, epoch, Phase.EXTRACTING, SHA)
    assert await store.finish_commit(
        run, GRADE, epoch, sha256=SHA, state=GradeState.SCORED, score=0.5, valid=True
    )
    first = (await store.runs_of_sweep("demo"))[0]
    assert (first.phase, first.grade, first.score, first.valid) == (
        Phase.DONE,
        GradeState.SCORED,
        0.5,
        True,
    )
    assert [row.kind for row in await store.read_inbox()] == [
        "started",
        "turn",
        "exit",
        "part",
        "commit",
    ]
    (line,) = await store.costs_of_run(run)
    assert (line.role, line.calls, line.cost_nanousd, line.offline_calls) == ("agent", 1, 5, 1)
    assert await store.costs_of_sweep("demo") == [line]
