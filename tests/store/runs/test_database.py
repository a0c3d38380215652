"""The store file: migrated in order, refused when it is foreign, whole after a kill."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from fde_ray.model.base import sha256_hex
from fde_ray.model.errors import StoreError, UserError
from fde_ray.model.states import Phase
from fde_ray.store.runs import RunStore
from fde_ray.store.runs.database import Database, Transaction
from fde_ray.store.runs.dialects.sqlite import SqliteDialect, SqliteLink
from fde_ray.store.runs.migrations import MIGRATIONS, Migration, first_schema, migrate
from tests.store.builders import make_plan, run_id
from tests.store.programs import killed, output_of, running

FIRST_SCHEMA = "3b5e183a477ca61dbcb8af1649ed181f7fd0fc9d447b4b0ea8b5e3a5f3adce66"


LAST = MIGRATIONS[-1].version


def test_first_migration_never_changes() -> None:
    assert sha256_hex("\n".join(first_schema())) == FIRST_SCHEMA


async def test_migrations_run_once_in_order_each_with_its_record(tmp_path: Path) -> None:
    ran: list[int] = []
    steps = (
        *MIGRATIONS,
        Migration(LAST + 1, "one more", lambda t: ran.append(1)),
        Migration(LAST + 2, "two more", lambda t: ran.append(2)),
    )
    database = Database(SqliteDialect(tmp_path / "runs.db"))
    await database.open()
    for _ in range(2):
        await migrate(database, 5.0, steps)
    await database.close()
    assert ran == [1, 2]
    assert rows_of(tmp_path / "runs.db", "SELECT version, name, at FROM migrations") == [
        *((one.version, one.name, 5.0) for one in steps),
    ]


async def test_failing_migration_leaves_the_version_before_it(tmp_path: Path) -> None:
    def broken(t: Transaction) -> None:
        t.raw("CREATE TABLE half (x INTEGER)")
        raise StoreError("no")

    database = Database(SqliteDialect(tmp_path / "runs.db"))
    await database.open()
    with pytest.raises(StoreError):
        await migrate(database, 5.0, (*MIGRATIONS, Migration(LAST + 1, "broken", broken)))
    await database.close()
    found = rows_of(tmp_path / "runs.db", "SELECT name FROM sqlite_master WHERE name = 'half'")
    assert found == []
    async with RunStore(tmp_path / "runs.db") as store:
        assert await store.sweeps() == []


async def test_store_of_the_first_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    database = Database(SqliteDialect(path))
    await database.open()
    await migrate(database, 5.0, MIGRATIONS[:1])
    plan = make_plan(1)
    columns = "run_id, tenant, case_id, condition, system, repeat, shard, phase, place, queued_at"
    rows_of(
        path,
        f"INSERT INTO runs ({columns}, updated_at, plan) VALUES (?, 'local', '017', 'hidden', 's',"
        " 1, 1, 'queued', 0, 1, 1, ?)",
        plan.run_id,
        plan.model_dump_json(),
    )
    await database.close()
    async with RunStore(path):
        pass
    assert rows_of(path, "SELECT model, image, granted_at FROM runs") == [
        ("offline/x", plan.image, None)
    ]
    assert rows_of(path, "SELECT count(*) FROM shards") == [(257,)]


async def test_calls_of_an_older_schema_get_their_day_and_their_replies_a_table(
    tmp_path: Path,
) -> None:
    path = tmp_path / "runs.db"
    database = Database(SqliteDialect(path))
    await database.open()
    await migrate(database, 5.0, MIGRATIONS[:5])
    columns = "call_id, try_no, subject, run_id, role, model, request_hash, price_hash"
    reply = '{"message": {"content": "hi"}, "model": "x"}'
    rows_of(
        path,
        f"INSERT INTO ledger ({columns}, started_at, state, reply)"
        " VALUES ('c', 1, 'r.1', 'r', 'agent', 'm', 'h', 'p', 86400.5, 'finished', ?)",
        reply,
    )
    await database.close()
    async with RunStore(path) as store:
        known = await store.known_call("c")
        assert known is not None
        assert known.reply is not None
        assert known.reply.text == "hi"
    assert rows_of(path, "SELECT day, replica FROM ledger") == [("1970-01-02", None)]


async def test_older_program_works_with_tables_that_only_grew(tmp_path: Path) -> None:
    async with RunStore(tmp_path / "runs.db"):
        pass
    rows_of(tmp_path / "runs.db", "INSERT INTO migrations VALUES (99, 'later', 0)")
    rows_of(tmp_path / "runs.db", "ALTER TABLE runs ADD COLUMN later TEXT")
    async with RunStore(tmp_path / "runs.db") as store:
        assert await store.submit_sweep("local", "demo", {}, [make_plan(1)])
        assert len(await store.runs_of_sweep("demo")) == 1


async def test_database_that_older_programs_cannot_live_with_is_refused(tmp_path: Path) -> None:
    later = Migration(99, "later", lambda t: t.raw("DROP TABLE parts"), breaks_older=True)
    database = Database(SqliteDialect(tmp_path / "runs.db"))
    await database.open()
    await migrate(database, 5.0, (*MIGRATIONS, later))
    await database.close()
    with pytest.raises(UserError, match="newer fde_ray"):
        async with RunStore(tmp_path / "runs.db"):
            pass


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"hello, world\n" * 1000, id="text"),
        pytest.param(b"\0" * 8192, id="zeros"),
        pytest.param(b"SQLite format 3\0" + b"\xff" * 8192, id="header-and-noise"),
    ],
)
async def test_file_that_is_no_database_is_refused_in_a_sentence(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "runs.db"
    write(path, content)
    with pytest.raises(UserError) as caught:
        async with RunStore(path):
            pass
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert read(path) == content


@pytest.mark.parametrize("table", ["meta", "other"])
async def test_database_of_another_program_is_left_alone(tmp_path: Path, table: str) -> None:
    path = tmp_path / "runs.db"
    rows_of(path, f"CREATE TABLE {table} (x INTEGER)")
    with pytest.raises(UserError, match="another program"):
        async with RunStore(path):
            pass
    assert rows_of(path, "SELECT name FROM sqlite_master") == [(table,)]


async def test_damaged_store_is_told_from_a_sound_one(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with RunStore(path) as store:
        await store.submit_sweep("local", "demo", {}, [make_plan(n) for n in range(100)])
    content = read(path)
    write(path, content[:4096] + b"\xff" * (len(content) - 4096))
    with pytest.raises(UserError, match="damaged"):
        async with RunStore(path) as store:
            await store.runs_of_sweep("demo")


async def test_empty_file_is_a_new_store(tmp_path: Path) -> None:
    write(tmp_path / "runs.db", b"")
    async with RunStore(tmp_path / "runs.db") as store:
        assert await store.sweeps() == []


async def test_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be opened"):
        async with RunStore(tmp_path):
            pass
    write(tmp_path / "file", b"")
    with pytest.raises(UserError, match="cannot be made"):
        async with RunStore(tmp_path / "file" / "runs.db"):
            pass


async def test_store_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    async with RunStore(tmp_path / "runs.db"):
        pass
    database = Database(SqliteDialect(tmp_path / "runs.db"))
    await database.open()
    connection_of(database).execute("PRAGMA query_only=ON")
    with pytest.raises(UserError, match="cannot be written"):
        await database.write(lambda t: t.raw("DELETE FROM meta"))
    await database.close()


async def test_full_disk_is_a_store_error_and_loses_nothing(tmp_path: Path) -> None:
    async with RunStore(tmp_path / "runs.db") as store:
        await store.submit_sweep("local", "small", {}, [make_plan(1)])
        connection = connection_of(store._db)
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(StoreError, match="full"):
            await store.submit_sweep("local", "big", {}, [make_plan(n) for n in range(2, 99)])
        assert [s.name for s in await store.sweeps()] == ["small"]
        connection.execute("PRAGMA max_page_count=1000000")
        assert await store.submit_sweep("local", "big", {}, [make_plan(2)])


async def test_locked_store_is_a_store_error_after_the_wait(tmp_path: Path) -> None:
    async with RunStore(tmp_path / "runs.db", busy_timeout_s=0.05) as store:
        other = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked"):
            await store.submit_sweep("local", "demo", {}, [])
        other.execute("COMMIT")
        other.close()
        assert await store.submit_sweep("local", "demo", {}, [])


async def test_cancelled_caller_does_not_stop_the_transaction(tmp_path: Path) -> None:
    async with RunStore(tmp_path / "runs.db") as store:
        task = asyncio.create_task(store.submit_sweep("local", "demo", {}, []), name="submit")
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await store.sweep("demo")).name == "demo"


async def test_store_closes_twice_and_leaves_no_thread(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs.db")
    await store.open()
    await store.close()
    await store.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("run-store")]


async def test_call_after_the_close_is_refused_and_never_waits(tmp_path: Path) -> None:
    async with RunStore(tmp_path / "runs.db") as store:
        pass
    with pytest.raises(StoreError, match="closed"):
        await store.sweeps()


ADDER = """
async def main():
    async with RunStore(PATH) as store:
        await store.submit_sweep("local", "demo", {}, [make_plan(1)])
        print("going", flush=True)
        for n in range(200):
            await store.token_serial(f"{run_id(1)}.1", f"{os.getpid()}-{n}")
asyncio.run(main())
"""


async def test_two_processes_write_without_losing_a_change(tmp_path: Path) -> None:
    from tests.store.builders import make_inputs

    path, subject = tmp_path / "runs.db", f"{run_id(1)}.1"
    async with RunStore(path) as store:
        await store.submit_sweep("local", "demo", {}, [make_plan(1)])
        epoch = (await store.take_lease()).epoch
        await store.open_attempt(run_id(1), epoch, make_inputs(subject))
        with running(ADDER, path) as child:
            for n in range(200):
                await store.token_serial(subject, f"here-{n}")
            await asyncio.to_thread(child.wait, 30)
            assert child.returncode == 0
        assert (await store.session(subject)).serial == 400


async def test_second_process_is_told_who_holds_the_store(tmp_path: Path) -> None:
    code = """
async def main():
    async with RunStore(PATH) as store:
        try:
            await store.take_lease()
        except FdeRayError as error:
            print(type(error).__name__, error)
asyncio.run(main())
"""
    async with RunStore(tmp_path / "runs.db") as store:
        await store.take_lease()
        said = await asyncio.to_thread(output_of, code, tmp_path / "runs.db")
    assert said.startswith(f"UserError another fde-ray (process {os.getpid()} on ")


MID_TRANSACTION = """
async def main():
    async with RunStore(PATH) as store:
        def change(t):
            t.raw("UPDATE runs SET phase = 'done'")
            t.raw("DELETE FROM grades")
            print("going", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        await store._db.write(change)
asyncio.run(main())
"""


async def test_kill_in_the_middle_of_a_transaction_undoes_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with RunStore(path) as store:
        await store.submit_sweep("local", "demo", {}, [make_plan(1)])
    with running(MID_TRANSACTION, path) as child:
        killed(child)
    async with RunStore(path, busy_timeout_s=2) as store:
        assert await store.phase_counts("demo") == {Phase.QUEUED: 1}
        assert len(await store.grades_of(run_id(1))) == 1
    assert rows_of(path, "PRAGMA integrity_check") == [("ok",)]


BUSY_DRIVER = """
async def main():
    async with RunStore(PATH) as store:
        lease = await store.take_lease()
        for n in range(1, 200):
            run, subject = run_id(n), f"{run_id(n)}.1"
            await store.open_attempt(run, lease.epoch, make_inputs(subject))
            await store.record_turn(subject, make_turn(), "h")
            await store.append_event(subject, make_replied(2), epoch=lease.epoch)
            if n == 3:
                print("going", flush=True)
asyncio.run(main())
"""


async def test_driver_killed_at_work_leaves_rows_that_agree(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with RunStore(path) as store:
        await store.submit_sweep("local", "demo", {}, [make_plan(n) for n in range(1, 200)])
        with running(BUSY_DRIVER, path) as child:
            killed(child)
        await store.take_lease()
        live = await store.live_runs()
        assert len(live) >= 3
        for task in live:
            attempt = await store.live_attempt(task.run.run_id)
            assert attempt is not None
            log = await store.dialogue(attempt.subject)
            if len(log) == 2:
                assert attempt.solve_end is not None
                assert await store.reply(attempt.subject, 1) is not None


def connection_of(database: Database) -> sqlite3.Connection:
    (link,) = database._links
    assert isinstance(link, SqliteLink)
    return link.connection


def rows_of(path: Path, sql: str, *values: object) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        with connection:
            return connection.execute(sql, values).fetchall()
    finally:
        connection.close()


def read(path: Path) -> bytes:
    return path.read_bytes()


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
