"""Submitted programs inside the box that this machine has: what they can do, and what not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fde_ray.cases.package import load_case
from fde_ray.cases.programs import RUNS_FILE
from fde_ray.cases.records import Case, Program
from fde_ray.grading.programs import answered
from fde_ray.grading.scoring import Scorer, scoring_case
from fde_ray.model.profile import SandboxProfile
from fde_ray.sandbox.local import LocalSandbox
from tests.grading.extracts import write
from tests.support.executable_case import (
    CRASHING,
    DEMANDS,
    ENTRY,
    build,
    policy,
    with_helper,
)
from tests.support.thief import thief

pytestmark = pytest.mark.sandbox

LIMITS = Program(entry=ENTRY, instance_s=20, instance_mib=128)


@pytest.fixture(scope="module")
def refill(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return load_case(build(tmp_path_factory.mktemp("case"), probes=()))


@pytest.fixture
def box(tmp_path: Path) -> LocalSandbox:
    return LocalSandbox(tmp_path / "home", SandboxProfile())


async def answers_of(
    box: LocalSandbox,
    case: Case,
    tmp_path: Path,
    files: Mapping[str, bytes],
    limits: Program = LIMITS,
) -> dict[str, Any]:
    write(tmp_path / "submission", files)
    folder = await answered(
        box,
        limits,
        tmp_path / "submission",
        case.root / "sealed",
        tmp_path,
        max_bytes=1 << 20,
    )
    return {path.name: json.loads(path.read_text()) for path in folder.iterdir()}


@pytest.mark.parametrize("unsafe", [False, True], ids=["boxed", "unsafe"])
@pytest.mark.parametrize(
    ("files", "score"),
    [
        pytest.param({ENTRY: policy().encode()}, 1.0, id="reference"),
        pytest.param(with_helper(), 1.0, id="with a module"),
        pytest.param({ENTRY: CRASHING.encode()}, 0.0, id="crash"),
        pytest.param({ENTRY: with_helper()[ENTRY]}, 0.0, id="module missing"),
    ],
)
async def test_program_is_run_and_judged_in_boxes(
    refill: Case, tmp_path: Path, unsafe: bool, files: dict[str, bytes], score: float
) -> None:
    box = LocalSandbox(tmp_path / "home", SandboxProfile(), unsafe=unsafe)
    write(tmp_path / "submission", files)
    sealed = refill.root / "sealed"
    place = scoring_case(refill, sealed_dir=sealed, data_dir=refill.root / "data")
    evaluation = await Scorer(box).evaluate(place, tmp_path / "submission")
    assert (evaluation.score, evaluation.valid) == (score, score == 1.0)
    codes = [] if score else ["no_answer"]
    assert [violation.code for violation in evaluation.violations] == codes


ENDS = {
    "hang": ("while True: pass", "timeout", None),
    "children": (
        "import os, time\nfor _ in range(5): os.fork()\ntime.sleep(60)",
        "timeout",
        None,
    ),
    "talk": ("while True: print('x' * 65536)", "output", None),
    "killed": ("import os; os.kill(os.getpid(), 9)", "exit", -9),
    "closed": ("import os; os.close(0); os.close(1); raise SystemExit(3)", "exit", 3),
}


@pytest.mark.parametrize("kind", list(ENDS))
async def test_misbehaving_program_ends_as_its_runs_tell(
    refill: Case, box: LocalSandbox, tmp_path: Path, kind: str
) -> None:
    text, reason, exit_code = ENDS[kind]
    short = LIMITS.evolve(instance_s=1) if reason == "timeout" else LIMITS
    found = await answers_of(box, refill, tmp_path, {ENTRY: text.encode()}, short)
    assert list(found) == [RUNS_FILE]
    ends = {"reason": reason, "exit_code": exit_code}
    assert list(found[RUNS_FILE]["runs"].values()) == [ends] * len(DEMANDS)


async def test_program_that_uses_up_memory_has_no_answer(
    refill: Case, box: LocalSandbox, tmp_path: Path
) -> None:
    text = "import time\nx = bytearray(400 << 20)\ntime.sleep(60)\n"
    found = await answers_of(box, refill, tmp_path, {ENTRY: text.encode()})
    assert list(found) == [RUNS_FILE]
    assert {run["reason"] for run in found[RUNS_FILE]["runs"].values()} == {"memory"}


async def test_program_finds_neither_truth_nor_other_instances_nor_a_network(
    refill: Case, box: LocalSandbox, tmp_path: Path
) -> None:
    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    text = thief(refill.root / "sealed", port)
    async with server:
        found = await answers_of(box, refill, tmp_path, {ENTRY: text.encode()})
    runs = found.pop(RUNS_FILE)["runs"]
    assert {run["reason"] for run in runs.values()} == {"exit"}
    assert sorted(found) == sorted(DEMANDS)
    for name, seen in found.items():
        assert json.loads(seen["given"])["demand"] == list(DEMANDS[name])
        assert (seen["opened"], seen["holding"], seen["network"]) == ([], [], [])
        assert seen["grader"] == ["program"]
        assert seen["links"] == ["lo"]
        assert set(seen["wrote"]) <= {"/tmp/left.txt", "left.txt"}
        assert len(seen["processes"]) < 10
        secrets = ("FDE", "TOKEN", "KEY", "SECRET")
        assert not [name for name in seen["variables"] if any(word in name for word in secrets)]
