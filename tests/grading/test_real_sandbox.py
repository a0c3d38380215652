"""Scorer and checker work inside the box that this machine has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fde_ray.grading.provenance import check
from fde_ray.grading.scoring import Scorer
from fde_ray.model.errors import EvaluatorFault
from fde_ray.model.failures import FailureKind
from fde_ray.model.profile import SandboxProfile
from fde_ray.sandbox.local import LocalSandbox
from tests.grading.extracts import as_csv, plan, reported, schema, write
from tests.grading.test_scoring import GOOD, case_at, write_evaluator

pytestmark = pytest.mark.sandbox


@pytest.fixture
async def box(tmp_path: Path) -> LocalSandbox:
    return LocalSandbox(tmp_path / "home", SandboxProfile())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("sealed", "data", "submission"):
        (tmp_path / name).mkdir()
    return tmp_path


async def test_evaluator_reads_its_folders_and_writes_nowhere(
    box: LocalSandbox, folder: Path
) -> None:
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
