"""The tables of the run store. Types are the portable four: text, integer, big integer, float.

JSON is stored as text that we write ourselves; truth values are 0 and 1. Long texts stand last in
their tables: SQLite has to read through them to get at what follows. What came after version 1
carries the version of its migration in `info` (`_since`): the first migration leaves it out (a test
compares it with its recorded hash), and `migrations.grown(version)` adds it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Float, Index, Integer, MetaData, Table, Text

metadata = MetaData()


def _key(name: str, kind: Any = Text) -> Column[Any]:
    return Column(name, kind, primary_key=True, nullable=False)


def _text(name: str) -> Column[Any]:
    return Column(name, Text, nullable=False)


def _text_or(name: str, default: str) -> Column[Any]:
    return Column(name, Text, nullable=False, server_default=default)


def _optional(name: str, kind: Any = Text) -> Column[Any]:
    return Column(name, kind, nullable=True)


def _number(name: str, default: int | None = None) -> Column[Any]:
    server_default = None if default is None else str(default)
    return Column(name, Integer, nullable=False, server_default=server_default)


def _time(name: str) -> Column[Any]:
    return Column(name, Float, nullable=False)


def _since(version: int, column: Column[Any]) -> Column[Any]:
    column.info["since"] = version
    return column


def _later_index(version: int, name: str, *columns: str) -> Index:
    return Index(name, *columns, info={"since": version})


meta = Table("meta", metadata, _key("key"), _text("value"))
migrations = Table("migrations", metadata, _key("version", Integer), _text("name"), _time("at"))
tenants = Table("tenants", metadata, _key("tenant"), _time("created_at"))
sweeps = Table(
    "sweeps",
    metadata,
    _key("tenant"),
    _key("name"),
    _text("spec"),
    _text("state"),
    _time("created_at"),
    _since(2, _text_or("owner", "")),
    _since(2, _number("priority", 0)),
    _since(2, _optional("budget_nanousd", BigInteger)),
)
wants = Table(
    "wants",
    metadata,
    _key("tenant"),
    _key("sweep"),
    _key("run_id"),
    _key("grade_id"),
    _number("place"),
    Index("wants_by_run", "run_id"),
)
runs = Table(
    "runs",
    metadata,
    _key("run_id"),
    _text("tenant"),
    _text("case_id"),
    _text("condition"),
    _text("system"),
    _number("repeat"),
    _optional("budget_usd", Float),
    _number("shard"),
    _text("phase"),
    _number("attempt", 0),
    _optional("solve_end"),
    _optional("failure"),
    _optional("detail"),
    _number("place"),
    _time("queued_at"),
    _optional("started_at", Float),
    _optional("ended_at", Float),
    _time("updated_at"),
    _text("plan"),
    _since(2, _optional("model")),
    _since(2, _optional("image")),
    _since(2, _optional("granted_at", Float)),
    Index("runs_by_phase", "phase", "place"),
    # Covers what admission reads: the columns after `plan` are dear to get at in the row.
    _later_index(
        2, "runs_by_grant", "phase", "granted_at", "model", "image", "shard", "place", "run_id"
    ),
)
grades = Table(
    "grades",
    metadata,
    _key("run_id"),
    _key("grade_id"),
    _text("state"),
    _optional("commit_sha"),
    _optional("score", Float),
    _optional("valid", Integer),
    _optional("outcome"),
    _optional("failure"),
    _optional("detail"),
    _number("tries", 0),
    _time("created_at"),
    _optional("ended_at", Float),
    _optional("progress"),
    _optional("plan"),
    _since(9, _optional("budget_cut")),
    Index("grades_by_state", "state"),
)
attempts = Table(
    "attempts",
    metadata,
    _key("subject"),
    _text("run_id"),
    _optional("grade_id"),
    _optional("route", Integer),
    _text("role"),
    _number("number"),
    _text("state"),
    _optional("nonce"),
    _number("serial", 0),
    _time("started_at"),
    _optional("agent_started_at", Float),
    _optional("solve_ended_at", Float),
    _optional("ended_at", Float),
    _optional("solve_end"),
    _optional("failure"),
    _optional("detail"),
    _optional("first_score_sha"),
    _optional("heartbeat_at", Float),
    _optional("cpu_s", Float),
    _optional("rss_bytes", BigInteger),
    _optional("handle"),
    _optional("exit"),
    _optional("result"),
    _optional("commit"),
    _text("inputs"),
    Index("attempts_by_run", "run_id", "role", "number"),
    Index("attempts_by_state", "state", "role"),
    _later_index(2, "attempts_by_start", "role", "agent_started_at"),
    _later_index(2, "attempts_by_end", "role", "ended_at"),
)
shards = Table(
    "shards",
    metadata,
    _key("shard", Integer),
    Column("epoch", BigInteger, nullable=False, server_default="0"),
    _optional("owner"),
    _optional("host"),
    _optional("pid", Integer),
    _optional("pid_started"),
    _optional("since", Float),
    _optional("expires_at", Float),
)
inbox = Table(
    "inbox",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    _number("shard"),
    _text("subject"),
    _text("run_id"),
    _text("kind"),
    _time("at"),
    Index("inbox_by_shard", "shard", "seq"),
    # Without it SQLite hands out the numbers of deleted rows again.
    sqlite_autoincrement=True,
)
rounds = Table(
    "rounds",
    metadata,
    _key("subject"),
    _key("seq", Integer),
    _number("turn_no"),
    _text("event"),
)
turns = Table(
    "turns",
    metadata,
    _key("subject"),
    _key("turn_no", Integer),
    _text("request_hash"),
    _optional("reply"),
    _time("at"),
    _since(3, _optional("held_cause")),
    _since(3, _optional("held_at", Float)),
)
parts = Table(
    "parts",
    metadata,
    _key("subject"),
    _key("snapshot"),
    _key("seq", Integer),
    _text("sha256"),
    Column("size", BigInteger, nullable=False),
)
commits = Table(
    "commits",
    metadata,
    _key("subject"),
    _key("snapshot"),
    _text("manifest"),
    _time("at"),
)
pauses = Table(
    "pauses",
    metadata,
    _key("subject"),
    _key("opened_at", Float),
    _text("cause"),
    _optional("closed_at", Float),
    _later_index(2, "pauses_by_close", "closed_at"),
)
ledger = Table(
    "ledger",
    metadata,
    _key("call_id"),
    _key("try_no", Integer),
    _text("subject"),
    _text("run_id"),
    _optional("grade_id"),
    _text("role"),
    _text("model"),
    _text("request_hash"),
    _text("price_hash"),
    _time("started_at"),
    _optional("finished_at", Float),
    _text("state"),
    _optional("status", Integer),
    _optional("detail"),
    _optional("usage"),
    _optional("prompt_tokens", BigInteger),
    _optional("completion_tokens", BigInteger),
    _optional("cost_nanousd", BigInteger),
    _optional("cost_reason"),
    _optional("model_returned"),
    _number("offline", 0),
    _optional("reply"),
    _since(6, _optional("day")),
    _since(6, _optional("replica")),
    _since(6, _optional("model_asked")),
    _since(6, _optional("usage_source")),
    _since(6, _optional("cached_tokens", BigInteger)),
    _since(6, _optional("cache_write_5m_tokens", BigInteger)),
    _since(6, _optional("cache_write_1h_tokens", BigInteger)),
    _since(6, _optional("reasoning_tokens", BigInteger)),
    _since(6, _optional("reserved_nanousd", BigInteger)),
    _since(6, _optional("owners")),
    _since(6, _optional("shrunk_to", BigInteger)),
    _since(6, _optional("raw_usage")),
    _since(9, _optional("finish_reason")),
    Index("ledger_by_run", "run_id"),
    Index("ledger_by_subject", "subject"),
    # Dropped by version 6: without an index on what changes, the end of a call touches no index.
    Index("ledger_by_state", "state"),
    _later_index(6, "ledger_by_day", "day"),
    _later_index(6, "ledger_by_replica", "replica"),
)
replies = Table(
    "replies",
    metadata,
    _key("call_id"),
    _text("subject"),
    _text("reply"),
    _later_index(6, "replies_by_subject", "subject"),
    info={"since": 6},
)
"""What repeats of a call get until its session closes."""
replicas = Table(
    "replicas",
    metadata,
    _key("boot"),
    _text("name"),
    _text("host"),
    _number("pid"),
    _text("pid_started"),
    _time("started_at"),
    _time("alive_until"),
    info={"since": 6},
)
"""Processes that have calls under way. The calls of one whose lease ran out have no end."""
budgets = Table(
    "budgets",
    metadata,
    _key("owner"),
    Column("spent", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False),
    _number("unpriced"),
    info={"since": 6},
)
"""Counters beside the ledger, in nano-dollars: what calls have cost; what calls under way, and
chunks of replicas, may yet cost."""
budget_chunks = Table(
    "budget_chunks",
    metadata,
    _key("owner"),
    _key("boot"),
    Column("held", BigInteger, nullable=False),
    Column("spent", BigInteger, nullable=False),
    info={"since": 6},
)
"""Of the reserve of a shared budget, what each replica holds; `spent` = all that it has told of."""
liveness = Table("liveness", metadata, _key("replica"), _time("at"))
breakers = Table(
    "breakers",
    metadata,
    _key("scope"),
    _key("key"),
    _text("state"),
    _text("kind"),
    _text("detail"),
    _time("since"),
    _optional("probe_at", Float),
    _number("cooldown_s"),
    _number("probes"),
    info={"since": 2},
)
released = Table("released", metadata, _key("run_id"), info={"since": 4})
"""Runs that a sweep let go when its spec changed; those that nobody wants are to be stopped."""
users = Table(
    "users",
    metadata,
    _key("tenant"),
    _key("name"),
    _text("role"),
    _text("token_hash"),
    _time("created_at"),
    _optional("revoked_at", Float),
    Index("users_by_token", "token_hash", info={"since": 7}),
    info={"since": 7},
)
"""People who may ask the control-plane; a token itself is nowhere."""
audit = Table(
    "audit",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    _text("tenant"),
    _time("at"),
    _text("actor"),
    _text("action"),
    _text("target"),
    _text("outcome"),
    _text("detail"),
    sqlite_autoincrement=True,
    info={"since": 7},
)
"""What people asked the control-plane to change, and whether they might."""
box_jobs = Table(
    "box_jobs",
    metadata,
    _key("job_id"),
    _text("owner"),
    _time("asked_at"),
    _time("expires_at"),
    _optional("taken_by"),
    _optional("taken_at", Float),
    _optional("ended_at", Float),
    _optional("result"),
    _text("document"),
    Index("box_jobs_by_owner", "owner", "ended_at", info={"since": 10}),
    info={"since": 10},
)
"""Programs that grades want run in their boxes; forgotten once their askers know how they ended."""
rates = Table(
    "rates",
    metadata,
    _key("key"),
    Column("level", Float, nullable=False),
    _time("at"),
    info={"since": 8},
)
"""Token buckets of endpoints, for all processes together."""
