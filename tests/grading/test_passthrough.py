"""Only a deliverable that needs no reading skips the panel (protocol rule 24)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from fde_ray.grading.passthrough import candidate, passthrough_route
from fde_ray.model.errors import EvaluatorFault
from fde_ray.model.failures import FailureKind
from fde_ray.model.grading import Evaluation, RouteStatus, Violation
from tests.grading.extracts import schema, write

SCORED = Evaluation(
    exit_code=0,
    valid=True,
    stage="quality",
    raw=1.0,
    quality=1.0,
    score=1.0,
    case="017",
    version="1.0.0",
    scoring_hash="ab",
)
BROKEN = SCORED.evolve(
    valid=False, stage="structure", score=0.0, violations=(Violation(code="x", count=1),)
)


@pytest.mark.parametrize(
    ("files", "summary", "found"),
    [
        (["plan.csv"], "All done.", "."),
        (["plan.csv", "NOTES.md", "solve.py"], "Ran solve.py, see NOTES.md and plan.csv.", "."),
        (["out/plan.csv"], "It is in out/plan.csv.", "out"),
        (["plan.csv", "draft.csv"], "plan.csv is final.", "."),
        (["plan.csv", "final.csv"], "The answer is final.csv.", None),
        (["plan.csv", "final.xlsx"], "See `./final.xlsx`, please", None),
        (["plan.csv", "x/final.json"], "The result: /workspace/x/final.json", None),
        (["plan.csv"], "The answer is final.csv.", "."),
        (["plan.csv", "old/plan.csv"], "Done.", None),
        (["data/plan.csv"], "Done.", None),
        (["data/plan.csv", "plan.csv"], "Done.", "."),
        (["plan.txt"], "Done.", None),
        ([], "", None),
    ],
)
def test_rule_24_candidate_is_undoubted(
    tmp_path: Path, files: Sequence[str], summary: str, found: str | None
) -> None:
    write(tmp_path / "w", dict.fromkeys(files, b"x"))
    expected = None if found is None else (tmp_path / "w" / found)
    assert candidate(tmp_path / "w", schema(), summary) == expected


def test_link_is_no_candidate(tmp_path: Path) -> None:
    write(tmp_path / "w", {"x.csv": b"x"})
    (tmp_path / "w" / "plan.csv").symlink_to("x.csv")
    assert candidate(tmp_path / "w", schema(), "") is None


async def test_rule_24_route_is_recorded_as_passthrough(tmp_path: Path) -> None:
    write(tmp_path / "w", {"plan.csv": b"x"})

    async def evaluate(folder: Path) -> Evaluation:
        assert (folder / "plan.csv").read_bytes() == b"x"
        return SCORED

    route = await passthrough_route(tmp_path / "w", schema(), "", tmp_path / "o", evaluate)
    assert route is not None
    assert (route.model, route.status, route.vote) == ("passthrough", RouteStatus.SUCCESS, 1.0)
    assert route.route == -1


async def test_rule_24_structural_trouble_goes_to_the_panel(tmp_path: Path) -> None:
    write(tmp_path / "w", {"plan.csv": b"x"})

    async def broken(folder: Path) -> Evaluation:
        return BROKEN

    async def crashed(folder: Path) -> Evaluation:
        raise EvaluatorFault(FailureKind.EVALUATOR_CRASH)

    for evaluate in (broken, crashed):
        assert (
            await passthrough_route(tmp_path / "w", schema(), "", tmp_path / "o", evaluate) is None
        )


class Watched(type(Path())):  # type: ignore[misc]
    """A path that knows which threads looked it up."""

    threads: ClassVar[set[int]] = set()

    def __fspath__(self) -> str:
        self.threads.add(threading.get_ident())
        return str(self)


@pytest.mark.parametrize("executable", [False, True])
async def test_a_large_workspace_is_not_read_where_others_wait(
    tmp_path: Path, executable: bool
) -> None:
    write(tmp_path / "w", {"plan.csv": b"x", "more.py": b"x"})
    Watched.threads.clear()

    async def evaluate(_folder: Path) -> Evaluation:
        return SCORED

    workspace, output = Watched(tmp_path / "w"), Watched(tmp_path / "o")
    route = await passthrough_route(
        workspace, schema(), "Done.", output, evaluate, executable=executable
    )
    assert route is not None
    assert Watched.threads
    assert threading.get_ident() not in Watched.threads
