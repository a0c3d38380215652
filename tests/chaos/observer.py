"""Looks at a home and the world around it, with nothing of the engine; says what is wrong."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from fde_ray.model.result import RunResult, canonical

from .world import Answered, World

TENANT = "local"


class Findings(NamedTuple):
    """What came of a sweep."""

    results: Mapping[str, Any]
    """Canonical results by object key."""
    faults: tuple[str, ...]


def observed(home: Path, world: World, lost_calls: int) -> Findings:
    """lost_calls: how many calls were in flight when something went wrong."""
    with closing(_opened(home)) as rows:
        keys = sorted(str(p.relative_to(home / "objects")) for p in _files(home / "objects"))
        faults = [
            *_of_runs(rows, keys),
            *_of_sessions(rows, keys, world),
            *_of_ledger(rows, world, lost_calls),
            *_of_objects(rows, keys),
            *_of_leftovers(rows, home),
        ]
    return Findings({k: _canonical(home / "objects" / k) for k in _results(keys)}, tuple(faults))


def _of_runs(rows: sqlite3.Connection, keys: list[str]) -> Iterator[str]:
    """Every run is done, once."""
    for run in rows.execute("SELECT run_id, phase FROM runs"):
        if run["phase"] != "done":
            yield f"run {run['run_id']} ended as {run['phase']}"
        found = [key for key in _results(keys) if f"/{run['run_id']}/" in key]
        if len(found) != 1:
            yield f"run {run['run_id']} has {len(found)} results"
        marks = [key for key in keys if "/marks/" in key and run["run_id"] in key]
        if len(marks) != 1:
            yield f"run {run['run_id']} has {len(marks)} marks"
    for grade in rows.execute("SELECT grade_id, state FROM grades WHERE state <> 'scored'"):
        yield f"grade {grade['grade_id']} is {grade['state']}"


def _of_sessions(rows: sqlite3.Connection, keys: list[str], world: World) -> Iterator[str]:
    """No sandbox is left, and no run ever had two of a kind."""
    yield from (f"sandbox {subject} is left" for subject in world.stage.left)
    for what, most in world.stage.most_alive.items():
        if most > 1:
            yield f"{most} sandboxes lived at once: {what}"
    ended = [key for key in keys if key.endswith("/end.json")]
    sessions = rows.execute("SELECT subject, state FROM attempts").fetchall()
    for session in sessions:
        if session["state"] != "closed":
            yield f"session {session['subject']} is {session['state']}"
    if len(ended) != len(sessions):
        yield f"{len(sessions)} sessions have {len(ended)} ends"
    unknown = set(world.stage.started) - {session["subject"] for session in sessions}
    yield from (f"session {subject} is in no row" for subject in unknown)


def _of_ledger(rows: sqlite3.Connection, world: World, lost_calls: int) -> Iterator[str]:
    """Each answer of a provider has its row, and no answer was asked for twice without a reason."""
    found: dict[str, Counter[Answered]] = {
        "started": Counter(),
        "finished": Counter(),
        "failed": Counter(),
        "ambiguous": Counter(),
    }
    for row in rows.execute("SELECT subject, role, request_hash, state FROM ledger"):
        key = Answered(row["subject"], row["role"], row["request_hash"])
        found[row["state"]][key] += 1
    yield from (f"a call is still open: {call}" for call in found["started"])
    answered, finished, ambiguous = world.provider.answered, found["finished"], found["ambiguous"]
    for call, count in (answered - finished - ambiguous).items():
        yield f"{count} answers are in no row: {call}"
    for call, count in (finished - answered).items():
        yield f"{count} rows have no answer: {call}"
    for call, count in finished.items():
        if count > 1:
            yield f"a call was paid for {count} times: {call}"
    if ambiguous.total() > lost_calls:
        yield f"{ambiguous.total()} calls count as ambiguous, {lost_calls} were disturbed"


def _of_objects(rows: sqlite3.Connection, keys: list[str]) -> Iterator[str]:
    """Every object belongs to a run, a case or a sweep that the store knows."""
    runs = {row["run_id"] for row in rows.execute("SELECT run_id FROM runs")}
    sweeps = {row["name"] for row in rows.execute("SELECT name FROM sweeps")}
    for key in keys:
        tenant, room, *rest = key.split("/")
        is_known = (
            (room == "runs" and rest[1] in runs)
            or (room == "sweeps" and rest[0] in sweeps)
            or room == "cases"
        )
        if tenant != TENANT or not is_known:
            yield f"object {key} belongs to nothing"


def _of_leftovers(rows: sqlite3.Connection, home: Path) -> Iterator[str]:
    """No pause is open, no scratch is left."""
    for row in rows.execute("SELECT subject FROM pauses WHERE closed_at IS NULL"):
        yield f"a pause of {row['subject']} is open"
    for path in _files(home / "scratch"):
        if "cases" not in path.parts:
            yield f"scratch is left: {path.relative_to(home)}"


def epochs(home: Path) -> dict[int, int]:
    """Return the epoch of each shard."""
    with closing(_opened(home)) as rows:
        return {row["shard"]: row["epoch"] for row in rows.execute("SELECT * FROM shards")}


def open_calls(home: Path) -> int:
    """Return how many calls have no end in the ledger."""
    with closing(_opened(home)) as rows:
        query = "SELECT count(*) FROM ledger WHERE state = 'started'"
        return int(rows.execute(query).fetchone()[0])


def _opened(home: Path) -> sqlite3.Connection:
    rows = sqlite3.connect(f"file:{home / 'runs.sqlite'}?mode=ro", uri=True)
    rows.row_factory = sqlite3.Row
    return rows


def _results(keys: list[str]) -> list[str]:
    return [key for key in keys if key.endswith("/result.json")]


def _canonical(path: Path) -> dict[str, Any]:
    return canonical(RunResult.model_validate(json.loads(path.read_bytes())))


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
