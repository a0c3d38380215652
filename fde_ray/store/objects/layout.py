"""The key of every object (architecture §6): complete without the database, one function a key."""

from __future__ import annotations

from typing import Literal

MANIFEST = "manifest.json"
ArchiveKind = Literal["visible", "extract", "sealed"]


def run_prefix(tenant: str, run: str) -> str:
    return f"{tenant}/runs/{run[:2]}/{run}/"


def attempt_prefix(tenant: str, subject: str) -> str:
    """Return the folder of a session: of a solving attempt, or of an extraction try."""
    if "/" not in subject:
        run, _, number = subject.partition(".")
        return f"{run_prefix(tenant, run)}attempts/{number}/"
    run, grade, tail = subject.split("/")
    route, _, number = tail.partition(".")
    return f"{run_prefix(tenant, run)}grades/{grade}/{route}.{number}/"


def start_key(tenant: str, subject: str) -> str:
    return f"{attempt_prefix(tenant, subject)}start.json"


def end_key(tenant: str, subject: str) -> str:
    return f"{attempt_prefix(tenant, subject)}end.json"


def gate_key(tenant: str, subject: str) -> str:
    """Return where it is kept how the isolation gate of a session's pod went."""
    return f"{attempt_prefix(tenant, subject)}gate.json"


def decoys_key(tenant: str, subject: str) -> str:
    """Return where it is kept what was alive of the addresses that the gate tried."""
    return f"{attempt_prefix(tenant, subject)}decoys.json"


def events_key(tenant: str, subject: str, seq: int) -> str:
    """Return where a block of the shim's own events goes: claims, gzip JSON lines."""
    return f"{attempt_prefix(tenant, subject)}events/{seq}.jsonl.gz"


def note_key(tenant: str, subject: str, seq: int) -> str:
    """Return where a note goes of how far a session at work is; the greatest number counts."""
    return f"{attempt_prefix(tenant, subject)}notes/{seq:09d}.json"


def dialogue_key(tenant: str, subject: str) -> str:
    return f"{attempt_prefix(tenant, subject)}dialogue.jsonl"


def calls_key(tenant: str, subject: str, replica: str, seq: int) -> str:
    return f"{attempt_prefix(tenant, subject)}calls/{replica}-{seq:06d}.jsonl.gz"


def part_key(tenant: str, subject: str, snapshot: str, seq: int, sha256: str) -> str:
    return part_beside(manifest_key(tenant, subject, snapshot), seq, sha256)


def part_beside(manifest: str, seq: int, sha256: str) -> str:
    """Return the key of a part that the manifest under the key `manifest` names."""
    return f"{manifest.removesuffix(MANIFEST)}parts/{seq:05d}-{sha256}"


def manifest_key(tenant: str, subject: str, snapshot: str) -> str:
    return f"{attempt_prefix(tenant, subject)}workspace/{snapshot}/{MANIFEST}"


def grade_prefix(tenant: str, run: str, grade: str) -> str:
    return f"{run_prefix(tenant, run)}grades/{grade}/"


def extraction_key(
    tenant: str, run: str, grade: str, route: int | str, sha256: str, name: str
) -> str:
    """Return where a file of a route's output goes; `sha256` is the hash of the whole output."""
    return f"{grade_prefix(tenant, run, grade)}extraction/{route}/{sha256}/{name}"


def box_prefix(tenant: str, owner: str) -> str:
    """Return the folder of what programs of `<run>/<grade>` read in their box, until it is
    graded."""
    run, _, grade = owner.partition("/")
    return f"{grade_prefix(tenant, run, grade)}boxes/"


def box_key(tenant: str, owner: str, sha256: str) -> str:
    return f"{box_prefix(tenant, owner)}{sha256}.tar.gz"


def judging_key(tenant: str, run: str, grade: str, judge: int | str, sha256: str) -> str:
    return f"{grade_prefix(tenant, run, grade)}judging/{judge}/{sha256}.json"


def result_key(tenant: str, run: str, grade: str) -> str:
    return f"{grade_prefix(tenant, run, grade)}result.json"


def sweeps_prefix(tenant: str) -> str:
    return f"{tenant}/sweeps/"


def sweep_prefix(tenant: str, sweep: str) -> str:
    return f"{sweeps_prefix(tenant)}{sweep}/"


def spec_key(tenant: str, sweep: str, number: int) -> str:
    return f"{specs_prefix(tenant, sweep)}{number}.json"


def specs_prefix(tenant: str, sweep: str) -> str:
    return f"{sweep_prefix(tenant, sweep)}specs/"


def runs_key(tenant: str, sweep: str, number: int) -> str:
    """Return where the planned runs of a spec are listed, each with its place in the sweep."""
    return f"{specs_prefix(tenant, sweep)}{number}.runs.json"


def tables_prefix(tenant: str, sweep: str) -> str:
    return f"{sweep_prefix(tenant, sweep)}tables/"


def table_key(tenant: str, sweep: str, table: str, batch: str) -> str:
    """Return where the rows of one batch of runs go; batches sort in the order of their making."""
    return f"{tables_prefix(tenant, sweep)}{table}-{batch}.parquet"


def marks_prefix(tenant: str, sweep: str) -> str:
    return f"{sweep_prefix(tenant, sweep)}marks/"


def mark_key(tenant: str, sweep: str, run: str, grade: str) -> str:
    """Return the mark of a terminal state: one LIST of a sweep's marks finds all of them."""
    return f"{marks_prefix(tenant, sweep)}{run[:2]}/{run}.{grade}.json"


def parse_mark(key: str) -> tuple[str, str] | None:
    """Return (run, grade) of a mark's key; None when it is no mark."""
    folder, _, name = key.rpartition("/")
    run, _, grade = name.removesuffix(".json").partition(".")
    if not name.endswith(".json") or not run or not grade or not folder.endswith(f"/{run[:2]}"):
        return None
    return run, grade


def case_key(tenant: str, kind: ArchiveKind, sha256: str) -> str:
    return f"{tenant}/cases/{kind}/{sha256}"
