"""What the plane writes is idempotent, and the first event that ends solving wins."""

from __future__ import annotations

import pytest

from fde_ray.model.errors import Superseded
from fde_ray.model.session import AgentExit
from fde_ray.model.states import Phase, SolveEnd
from fde_ray.store.errors import Conflict, RowMissing
from fde_ray.store.runs import Epoch, RunStore
from tests.store.builders import ManualClock, make_commit, make_part, run_id

OTHER = "b" * 64


async def test_nonce_keeps_its_serial_and_a_new_one_gets_the_next(
    store: RunStore, subject: str
) -> None:
    serials = [await store.token_serial(subject, nonce) for nonce in ("a", "a", "b", "b", "a")]
    assert serials == [1, 1, 2, 2, 3]
    assert (await store.session(subject)).serial == 3


async def test_closed_session_gets_no_token(store: RunStore, epoch: Epoch, subject: str) -> None:
    await store.close_attempt(subject, epoch)
    with pytest.raises(Superseded):
        await store.token_serial(subject, "a")
    with pytest.raises(RowMissing):
        await store.token_serial("nobody.1", "a")


async def test_a_session_that_knows_of_no_shim_takes_the_word_of_the_first(
    store: RunStore, subject: str
) -> None:
    """As after a rebuild: the shim lives on, and its tokens are good."""
    assert await store.token_serial(subject, "a", held=3) == 3
    assert await store.token_serial(subject, "a", held=3) == 3
    with pytest.raises(Superseded):
        await store.token_serial(subject, "b", held=2)
    assert await store.token_serial(subject, "c") == 4


async def test_terminal_run_has_no_live_session(
    store: RunStore, epoch: Epoch, subject: str
) -> None:
    await store.move_run(run_id(1), epoch, Phase.PROVISIONING, Phase.CANCELLED)
    assert not (await store.session(subject)).live


async def test_clock_starts_once(store: RunStore, subject: str, clock: ManualClock) -> None:
    started = await store.mark_agent_started(subject)
    clock.at += 10
    assert await store.mark_agent_started(subject) == started
    assert (await store.session(subject)).agent_started_at == started
    assert [row.kind for row in await store.read_inbox()] == ["started"]


async def test_first_end_wins_and_the_claim_is_kept(
    store: RunStore, subject: str, clock: ManualClock
) -> None:
    assert await store.end_solving(subject, SolveEnd.TIME_LIMIT, detail="12 h") == "time_limit"
    ended = clock.at
    clock.at += 1
    notice = AgentExit(kind="agent_error", detail="boom", exit_code=1)
    assert await store.record_exit(subject, notice) is SolveEnd.TIME_LIMIT
    row = await store.session(subject)
    assert (row.solve_end, row.solve_ended_at, row.exit) == (SolveEnd.TIME_LIMIT, ended, notice)
    assert (row.state, row.detail) == ("collecting", "12 h")
    assert [row.kind for row in await store.read_inbox()] == ["exit"]


async def test_exit_of_the_agent_ends_solving_when_nothing_did(
    store: RunStore, subject: str
) -> None:
    notice = AgentExit(kind="agent_resource", detail="a\x1b[31mb" * 400)
    assert await store.record_exit(subject, notice) is SolveEnd.AGENT_RESOURCE
    assert await store.record_exit(subject, notice) is SolveEnd.AGENT_RESOURCE
    row = await store.session(subject)
    assert row.detail is not None
    assert len(row.detail) <= 500
    assert "\x1b" not in row.detail


async def test_end_after_the_close_changes_nothing(
    store: RunStore, epoch: Epoch, subject: str
) -> None:
    await store.close_attempt(subject, epoch, solve_end=SolveEnd.INFRA_LOST)
    assert await store.end_solving(subject, SolveEnd.SUBMITTED) is SolveEnd.INFRA_LOST
    assert (await store.session(subject)).state == "closed"


async def test_part_is_noted_once(store: RunStore, subject: str) -> None:
    first, other = make_part(0), make_part(0, OTHER)
    assert await store.record_part(subject, "final", first) == first
    assert await store.record_part(subject, "final", first) == first
    assert await store.record_part(subject, "final", other) == first
    assert await store.record_part(subject, "s-1", other) == other
    assert await store.parts(subject, "final") == (first,)


async def test_manifest_may_only_name_stored_parts(store: RunStore, subject: str) -> None:
    await store.record_part(subject, "final", make_part(0))
    for part in (make_part(1), make_part(0, OTHER)):
        with pytest.raises(Conflict, match="never stored"):
            await store.record_commit(subject, make_commit(part))
    assert (await store.session(subject)).commit is None


async def test_first_manifest_of_a_snapshot_counts(store: RunStore, subject: str) -> None:
    first = make_commit()
    assert await store.record_commit(subject, first) == first
    assert await store.record_commit(subject, first) == first
    assert await store.record_commit(subject, make_commit(tree_hash=OTHER)) == first
    row = await store.session(subject)
    assert (row.state, row.commit) == ("committed", first)
    assert [row.kind for row in await store.read_inbox()] == ["commit"]


async def test_snapshots_come_before_the_final_manifest_only(store: RunStore, subject: str) -> None:
    one = make_commit(final=False, snapshot="s-1")
    two = make_commit(final=False, snapshot="s-2")
    await store.record_commit(subject, one)
    await store.record_commit(subject, two)
    row = await store.session(subject)
    assert (row.state, row.commit) == ("open", two)
    await store.record_commit(subject, make_commit())
    assert await store.record_commit(subject, one) == one
    with pytest.raises(Superseded):
        await store.record_commit(subject, make_commit(final=False, snapshot="s-3"))
    assert (await store.session(subject)).commit == make_commit()
    kinds = [row.kind for row in await store.read_inbox()]
    assert kinds == ["snapshot", "snapshot", "commit"]


async def test_last_snapshot_becomes_final_unchanged_and_only_once(
    store: RunStore, subject: str
) -> None:
    one = make_commit(final=False, snapshot="s-1")
    await store.record_commit(subject, one)
    changed = one.evolve(final=True, tree_hash=OTHER)
    assert await store.record_commit(subject, changed) == one
    assert (await store.session(subject)).state == "open"
    final = one.evolve(final=True)
    assert await store.record_commit(subject, final) == final
    assert await store.record_commit(subject, final) == final
    row = await store.session(subject)
    assert (row.state, row.commit) == ("committed", final)
    assert [row.kind for row in await store.read_inbox()] == ["snapshot", "commit"]


async def test_snapshot_does_not_become_final_beside_another(store: RunStore, subject: str) -> None:
    one = make_commit(final=False, snapshot="s-1")
    await store.record_commit(subject, one)
    await store.record_commit(subject, make_commit())
    with pytest.raises(Superseded):
        await store.record_commit(subject, one.evolve(final=True))


async def test_first_scored_output_is_kept(store: RunStore, subject: str) -> None:
    assert await store.set_first_score(subject, OTHER)
    assert not await store.set_first_score(subject, "c" * 64)
    assert (await store.session(subject)).first_score_sha == OTHER
