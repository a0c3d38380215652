"""Scorer and checker work inside the box that this machine has."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fde_ray.grading.provenance import check
from fde_ray.grading.scoring import Scorer
from fde_ray.model.errors import EvaluatorFault
from fde_ray.model.failures import FailureKind
from fde_ray.model.profile import SandboxProfile
from fde_ray.sandbox.local import LocalSandbox
from tests.grading.extracts import as_csv, plan, reported, schema, write
from tests.grading.test_provenance_honest import parquet_file
from tests.grading.test_scoring import GOOD, case_at, write_evaluator

pytestmark = pytest.mark.sandbox


@pytest.fixture(params=[False, True], ids=["boxed", "unsafe"])
async def box(tmp_path: Path, request: pytest.FixtureRequest) -> LocalSandbox:
    return LocalSandbox(tmp_path / "home", SandboxProfile(), unsafe=request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("sealed", "data", "submission"):
        (tmp_path / name).mkdir()
    return tmp_path


async def test_evaluator_reads_its_folders_without_a_sandbox(folder: Path) -> None:
    box = LocalSandbox(folder / "home", SandboxProfile(), unsafe=True)
    write(folder / "submission", {"plan.csv": b"a\n1\n"})
    write_evaluator(
        folder,
        "named = dict(zip(sys.argv[1::2], sys.argv[2::2]))\n"
        "assert os.listdir(named['--submission-dir']) == ['plan.csv']\n"
        "assert os.path.isdir(named['--data-dir'])\n"
        "assert 'evaluator.py' in os.listdir(named['--sealed-dir'])\n"
        "assert os.path.dirname(__file__) == named['--sealed-dir']\n"
        "print(json.dumps(GOOD))",
    )
    evaluation = await Scorer(box).evaluate(case_at(folder), folder / "submission")
    assert evaluation.score == GOOD["score"]


async def test_evaluator_reads_its_folders_and_writes_nowhere(folder: Path) -> None:
    box = LocalSandbox(folder / "home", SandboxProfile())
    write(folder / "submission", {"plan.csv": b"a\n1\n"})
    write_evaluator(
        folder,
        "import socket\n"
        "here = {n: sys.argv[sys.argv.index(n) + 1] for n in sys.argv if n.startswith('--')}\n"
        "assert os.listdir(here['--submission-dir']) == ['plan.csv']\n"
        "for place in here.values():\n"
        "    try:\n"
        "        open(place + '/x', 'w')\n"
        "    except OSError:\n"
        "        continue\n"
        "    raise SystemExit(5)\n"
        "assert [name for _, name in socket.if_nameindex()] == ['lo']\n"
        "print(json.dumps(GOOD))",
    )
    evaluation = await Scorer(box).evaluate(case_at(folder), folder / "submission")
    assert evaluation.score == GOOD["score"]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("raise SystemExit(4)", FailureKind.EVALUATOR_CRASH),
        ("raise ValueError", FailureKind.EVALUATOR_CRASH),
        ("time.sleep(60)", FailureKind.EVALUATOR_TIMEOUT),
        ("print('x' * (4 << 20))", FailureKind.EVALUATOR_OUTPUT),
    ],
)
async def test_misbehaving_evaluator_is_a_typed_fault_in_the_box(
    box: LocalSandbox, folder: Path, body: str, kind: FailureKind
) -> None:
    write_evaluator(folder, body)
    with pytest.raises(EvaluatorFault) as caught:
        await Scorer(box).evaluate(case_at(folder, 2.0), folder / "submission")
    assert caught.value.kind is kind


async def test_checker_works_in_the_box(box: LocalSandbox, tmp_path: Path) -> None:
    source = {"f.json": json.dumps(plan()).encode()}
    report = reported(source, {"plan.csv": ["f.json"]})
    write(tmp_path / "w", source)
    for rows, expected in ((plan(), "clean"), (plan()[1:], "rejected")):
        write(tmp_path / "o", {"plan.csv": as_csv(rows)})
        found = await check(box, tmp_path / "w", tmp_path / "o", schema(), report)
        assert found.verdict == expected, found.findings


@pytest.mark.parametrize("unsafe", [False, True])
async def test_checker_reads_parquet_when_the_agents_environment_can(
    tmp_path: Path, unsafe: bool
) -> None:
    profile = SandboxProfile(agent_env=sys.prefix)
    box = LocalSandbox(tmp_path / "home", profile, unsafe=unsafe)
    source = {"f.parquet": parquet_file(plan())}
    report = reported(source, {"plan.csv": ["f.parquet"]})
    write(tmp_path / "w", source)
    for rows, expected in ((plan(), "clean"), (plan()[1:], "rejected")):
        write(tmp_path / "o", {"plan.csv": as_csv(rows)})
        found = await check(box, tmp_path / "w", tmp_path / "o", schema(), report)
        assert found.verdict == expected, found.findings
