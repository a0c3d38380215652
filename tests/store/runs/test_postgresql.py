"""What only a server has: locks of rows, lost connections, replies that never come, restarts."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fde_ray.model.clock import SystemClock
from fde_ray.model.errors import StoreError, Superseded, UserError
from fde_ray.model.ids import CONTROLLER_SHARD, SHARDS
from fde_ray.model.states import GradeState, Phase, SolveEnd
from fde_ray.store.runs import Epoch, LeaseOwner, RunStore, StoreLocation
from fde_ray.store.runs.database import Transaction
from fde_ray.store.runs.dialects.postgresql import PostgresDialect
from tests.postgresql import Server, running_postgresql, started
from tests.store.builders import (
    GRADE,
    SHA,
    ManualClock,
    make_call_finish,
    make_call_start,
    make_inputs,
    make_plan,
    make_replied,
    make_turn,
    run_id,
)
from tests.store.runs.conftest import Kept

RUN = run_id(1)
SUBJECT = f"{RUN}.1"
OTHER = LeaseOwner("other", "elsewhere", 1, "1")


@pytest.fixture
def location(kept: Kept) -> StoreLocation:
    return kept.emptied()


@pytest.fixture
def hand(location: StoreLocation) -> Iterator[psycopg.Connection[Any]]:
    """Another session, that does what it is told."""
    with psycopg.connect(location.url, autocommit=True) as connection:
        yield connection


async def waits(task: asyncio.Task[Any]) -> bool:
    await asyncio.wait([task], timeout=0.15)
    return not task.done()


# --- takeovers ---------------------------------------------------------------------------------


async def test_takeover_waits_for_a_change_that_is_under_way(
    store: RunStore, epoch: Epoch, clock: ManualClock, hand: psycopg.Connection[Any]
) -> None:
    clock.at += 61
    hand.execute("BEGIN")
    hand.execute("SELECT 1 FROM shards WHERE shard = 1 FOR SHARE")
    taking = asyncio.create_task(store.take_lease(OTHER), name="takeover")
    assert await waits(taking)
    hand.execute("COMMIT")
    assert (await taking).epoch > epoch


CHANGES: dict[str, Callable[[RunStore, Epoch], Awaitable[Any]]] = {
    "move": lambda s, e: s.move_run(RUN, e, Phase.PROVISIONING, Phase.SOLVING),
    "close": lambda s, e: s.close_attempt(SUBJECT, e, solve_end=SolveEnd.SUBMITTED),
    "append": lambda s, e: s.append_event(SUBJECT, make_replied(1, end=None), epoch=e),
    "open": lambda s, e: s.open_attempt(run_id(257), e, make_inputs(f"{run_id(257)}.1")),
    "try": lambda s, e: s.open_try(RUN, GRADE, 0, e, make_inputs(f"{RUN}/{GRADE}/0.1")),
    "grade": lambda s, e: s.move_grade(RUN, GRADE, e, GradeState.PENDING, GradeState.GRADE_MISSING),
    "commit": lambda s, e: s.begin_commit(RUN, GRADE, e, Phase.PROVISIONING, SHA),
    "solved": lambda s, e: s.finish_solving(
        RUN, e, Phase.PROVISIONING, SUBJECT, SolveEnd.SUBMITTED
    ),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_change_that_meets_a_takeover_waits_for_it_and_is_superseded(
    store: RunStore, epoch: Epoch, subject: str, hand: psycopg.Connection[Any], name: str
) -> None:
    hand.execute("BEGIN")
    hand.execute("UPDATE shards SET epoch = epoch + 1, owner = 'other'")
    change = asyncio.create_task(_awaited(CHANGES[name](store, epoch)), name="change")
    assert await waits(change)
    hand.execute("COMMIT")
    with pytest.raises(Superseded):
        await change
    assert (await store.run(RUN)).phase is Phase.PROVISIONING


async def _awaited(call: Awaitable[Any]) -> Any:
    return await call


async def test_leases_go_by_the_clock_of_the_server(location: StoreLocation) -> None:
    """In production; a host whose clock is wrong takes nothing too early."""
    async with RunStore.at(location, SystemClock()) as store:
        lease = await store.take_lease()
        (now,) = await store._db.read(
            lambda t: t.fetch("SELECT extract(epoch FROM clock_timestamp())::float8")
        )
        assert 55 < lease.expires_at - now <= 60
        row = await store._db.read(lambda t: t.fetch("SELECT min(expires_at) FROM shards"))
        assert 50 < row[0] - now <= 60


async def test_a_sweep_that_is_being_replaced_keeps_no_other_from_its_grants(
    store: RunStore, epoch: Epoch, hand: psycopg.Connection[Any]
) -> None:
    controller = await store.take_lease(shards=(CONTROLLER_SHARD,))
    await store.submit_sweep("local", "other", {}, [make_plan(9, sweep="other")])
    hand.execute("BEGIN")
    hand.execute("SELECT 1 FROM sweeps WHERE name = 'demo' FOR UPDATE")
    async with asyncio.timeout(5):
        assert await store.grant([RUN, run_id(9)], controller.epoch) == 1
    assert [task.run.run_id for task in await store.granted(range(SHARDS), 9)] == [run_id(9)]
    hand.execute("COMMIT")
    assert await store.grant([RUN], controller.epoch) == 1


async def test_a_sweep_that_is_being_paused_gets_no_grant_behind_its_back(
    store: RunStore, epoch: Epoch, hand: psycopg.Connection[Any]
) -> None:
    controller = await store.take_lease(shards=(CONTROLLER_SHARD,))
    hand.execute("BEGIN")
    hand.execute("UPDATE sweeps SET state = 'paused' WHERE name = 'demo'")
    assert await store.grant([RUN], controller.epoch) == 0
    hand.execute("COMMIT")
    assert await store.grant([RUN], controller.epoch) == 0


# --- the inbox ---------------------------------------------------------------------------------


async def test_row_that_is_committed_late_is_not_passed_over(
    store: RunStore, epoch: Epoch, subject: str, hand: psycopg.Connection[Any]
) -> None:
    """Numbers are given out before the commit: a greater one may be seen first."""
    hand.execute("BEGIN")
    hand.execute(
        "INSERT INTO inbox (shard, subject, run_id, kind, at) VALUES (1, %s, %s, 'exit', 0)",
        (subject, RUN),
    )
    await store.record_turn(subject, make_turn())
    (seen,) = await store.read_inbox()
    assert seen.kind == "turn"
    await store.ack_inbox([seen.seq], epoch)
    hand.execute("COMMIT")
    (late,) = await store.read_inbox()
    assert late.kind == "exit"
    assert late.seq < seen.seq


# --- lost connections --------------------------------------------------------------------------


async def serial_of(store: RunStore) -> int:
    return (await store.session(SUBJECT)).serial


async def test_connections_that_were_cut_are_made_again(
    store: RunStore, subject: str, hand: psycopg.Connection[Any]
) -> None:
    for nonce in ("a", "b", "c"):
        assert await store.token_serial(subject, nonce)
        hand.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'fde-ray'"
        )
    assert await serial_of(store) == 3


async def test_change_that_is_cut_off_begins_again(
    store: RunStore, subject: str, hand: psycopg.Connection[Any]
) -> None:
    calls = 0

    def change(t: Transaction) -> None:
        nonlocal calls
        calls += 1
        t.raw("UPDATE attempts SET serial = serial + 1")
        if calls == 1:
            (pid,) = t.fetch("SELECT pg_backend_pid()")
            hand.execute("SELECT pg_terminate_backend(%s)", (pid,))
            time.sleep(0.05)
            t.raw("UPDATE attempts SET serial = serial")

    await store._db.write(change)
    assert calls == 2
    assert await serial_of(store) == 1


async def test_deadlock_is_resolved_by_beginning_again(
    store: RunStore, epoch: Epoch, hand: psycopg.Connection[Any]
) -> None:
    """Two changes that lock the same rows in opposite orders are both made."""
    barrier, first = threading.Barrier(2), {"up": True, "down": True}

    def change(name: str, runs: tuple[str, str]) -> Callable[[Transaction], None]:
        def apply(t: Transaction) -> None:
            for place, run in enumerate(runs):
                t.raw(f"UPDATE runs SET place = place + 1 WHERE run_id = '{run}'")
                if place == 0 and first.pop(name, False):
                    barrier.wait(5)

        return apply

    await asyncio.gather(
        store._db.write(change("up", (run_id(1), run_id(2)))),
        store._db.write(change("down", (run_id(2), run_id(1)))),
    )
    rows = hand.execute("SELECT place FROM runs ORDER BY run_id").fetchall()
    assert rows == [(2,), (3,), (2,)]


class Proxy:
    """Stands between the store and the server, and cuts the connection at a COMMIT.

    cut: "before" = the server never hears it; "reply" = the server commits and nobody is told.
    """

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.cut, self.cuts = folder, "", 0
        self._target = str(server.folder / ".s.PGSQL.5432")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                self._open += [client, server]
                state = {"commit": False}
                for source, target in ((client, server), (server, client)):
                    thread = threading.Thread(
                        target=self._carry,
                        args=(source, target, source is client, state),
                        daemon=True,
                    )
                    thread.start()

    def _carry(
        self, source: socket.socket, target: socket.socket, asks: bool, state: dict[str, bool]
    ) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if asks and b"COMMIT" in data and self.cut:
                    if self.cut == "before":
                        break
                    state["commit"] = True
                if not asks and state["commit"] and self.cut:
                    break
                target.sendall(data)
            else:
                target.shutdown(socket.SHUT_WR)
                return
            self.cut, self.cuts = "", self.cuts + 1
            for one in (source, target):
                one.shutdown(socket.SHUT_RDWR)


@pytest.fixture
async def proxied(
    location: StoreLocation, postgresql: Server, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[RunStore, Proxy]]:
    folder = Path(tmp_path_factory.mktemp("p"))
    proxy = Proxy(folder, postgresql)
    url = location.url.replace(str(postgresql.folder), str(folder))
    async with RunStore(PostgresDialect(url, connections=1), ManualClock()) as store:
        yield store, proxy
    proxy.close()


@pytest.mark.parametrize("cut", ["before", "reply"])
async def test_commit_that_gets_no_reply_is_made_once(
    proxied: tuple[RunStore, Proxy], cut: str
) -> None:
    store, proxy = proxied
    await store.submit_sweep("local", "demo", {}, [make_plan(1)])
    lease = await store.take_lease()
    await store.open_attempt(RUN, lease.epoch, make_inputs(SUBJECT))
    before = await serial_of(store)
    calls = 0

    def add(t: Transaction) -> int:
        nonlocal calls
        calls += 1
        t.raw("UPDATE attempts SET serial = serial + 1")
        t.wake(("told",))
        return calls

    with store.changed.watch(("told",)) as news:
        proxy.cut = cut
        result = await store._db.write(add)
    assert proxy.cuts == 1
    assert await serial_of(store) == before + 1
    assert calls == result == (1 if cut == "reply" else 2)
    assert news.is_set()


@pytest.mark.parametrize("cut", ["before", "reply"])
async def test_calls_whose_commit_gets_no_reply_are_in_the_ledger_once(
    proxied: tuple[RunStore, Proxy], cut: str
) -> None:
    store, proxy = proxied
    budget = {"budget_nanousd": 1000, "reserved_nanousd": 100}
    proxy.cut = cut
    starts = (store.start_call(make_call_start(f"c{n}", SUBJECT, **budget)) for n in range(5))
    await asyncio.gather(*starts)
    proxy.cut = cut
    ends = (
        store.finish_call(make_call_finish(f"c{n}", cost_nanousd=7, is_held=True)) for n in range(5)
    )
    await asyncio.gather(*ends)
    assert proxy.cuts == 2
    rows = await store.calls_of(RUN)
    assert [(row.state, row.cost_nanousd) for row in rows] == [("finished", 7)] * 5
    assert await store.budget(f"run:{RUN}") == (35, 0, 0)


async def test_server_that_restarts_costs_no_call() -> None:
    with running_postgresql() as server:
        async with RunStore.at(StoreLocation(server.url()), ManualClock()) as store:
            await store.submit_sweep("local", "demo", {}, [make_plan(1)])
            lease = await store.take_lease()
            await store.open_attempt(RUN, lease.epoch, make_inputs(SUBJECT))
            working = asyncio.create_task(_count_up(store, 100), name="work")
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(0.2)
            with started(server.folder):
                await working
                assert await serial_of(store) == 100


async def _count_up(store: RunStore, count: int) -> None:
    for n in range(count):
        await store.token_serial(SUBJECT, f"nonce-{n}")


async def test_server_that_stays_away_is_a_store_error_for_every_call(
    location: StoreLocation, postgresql: Server, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = Path(tmp_path_factory.mktemp("p"))
    proxy = Proxy(folder, postgresql)
    url = location.url.replace(str(postgresql.folder), str(folder))
    async with RunStore(PostgresDialect(url, patience_s=0.3), ManualClock()) as store:
        proxy.close()
        began = time.monotonic()
        found = await asyncio.gather(*(store.sweeps() for _ in range(200)), return_exceptions=True)
        assert {type(one) for one in found} == {StoreError}
        assert time.monotonic() - began < 5


# --- what a pooler asks for --------------------------------------------------------------------


async def test_process_keeps_to_its_connections_however_much_is_asked(
    store: RunStore, epoch: Epoch, hand: psycopg.Connection[Any]
) -> None:
    most = 0
    for _ in range(5):
        await asyncio.gather(*(store.sweep("demo") for _ in range(60)))
        row = hand.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fde-ray'"
        ).fetchone()
        assert row is not None
        most = max(most, row[0])
    assert 1 < most <= 3


async def test_nothing_outlives_a_transaction(store: RunStore, epoch: Epoch) -> None:
    inside = await store._db.write(lambda t: t.fetch("SELECT current_setting('lock_timeout')")[0])
    assert inside == "10s"
    for question, answer in {
        "SELECT current_setting('lock_timeout')": "0",
        "SELECT count(*) FROM pg_prepared_statements": 0,
        "SELECT count(*) FROM pg_listening_channels()": 0,
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'": 0,
    }.items():
        found = await store._db.read(lambda t, q=question: t.fetch(q)[0])  # type: ignore[misc]
        assert found == answer, question


async def test_session_that_stops_in_a_transaction_is_given_up_by_the_server(
    store: RunStore, subject: str
) -> None:
    found = await store._db.write(
        lambda t: t.fetch("SELECT current_setting('idle_in_transaction_session_timeout')")[0]
    )
    assert found == "10s"


# --- migrations --------------------------------------------------------------------------------


async def test_processes_that_start_at_once_migrate_once(postgresql: Server) -> None:
    with psycopg.connect(postgresql.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE fresh")
    location = StoreLocation(postgresql.url("fresh"), connections=1)

    async def opened(_: int) -> None:
        async with RunStore.at(location):
            pass

    await asyncio.gather(*(opened(n) for n in range(6)))
    with psycopg.connect(location.url) as connection:
        rows = connection.execute("SELECT version FROM migrations ORDER BY version").fetchall()
        assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
        assert connection.execute("SELECT count(*) FROM shards").fetchone() == (257,)


async def test_database_of_another_program_is_left_alone(postgresql: Server) -> None:
    with psycopg.connect(postgresql.url(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE foreign_one")
    location = StoreLocation(postgresql.url("foreign_one"))
    with psycopg.connect(location.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE meta (x int)")
    with pytest.raises(UserError, match="another program"):
        async with RunStore.at(location):
            pass
