"""Submitted programs are run apart from what grades them, and only their answers are judged."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fde_ray.cases.package import load_case
from fde_ray.cases.programs import RUNS_FILE
from fde_ray.cases.records import Case, Program
from fde_ray.grading.extraction import Extraction, output_hash
from fde_ray.grading.passthrough import MAX_MODULES, passthrough_route
from fde_ray.grading.programs import PROGRAM, answered
from fde_ray.grading.provenance import check
from fde_ray.grading.scoring import SEALED, SUBMISSION, Scorer, ScoringCase, scoring_case
from fde_ray.model.errors import EvaluatorFault, SandboxError
from fde_ray.model.failures import FailureKind
from fde_ray.model.grading import Evaluation
from fde_ray.sandbox.records import Completed, Once
from fde_ray.shim.boxes import ENV_PYTHON
from tests.grading.doubles import LocalRunOnce, ended_with
from tests.grading.extracts import reported, write
from tests.support.executable_case import (
    CRASHING,
    DEMANDS,
    ENTRY,
    HELPER,
    build,
    instance_text,
    policy,
    with_helper,
)

GOOD = {ENTRY: policy().encode()}
Answer = Callable[[Once], Completed]


@pytest.fixture(scope="module")
def refill(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return load_case(build(tmp_path_factory.mktemp("case"), probes=()))


@pytest.fixture
def case(refill: Case) -> ScoringCase:
    return scored_as(refill)


def scored_as(refill: Case) -> ScoringCase:
    sealed = refill.root / "sealed"
    return scoring_case(refill, sealed_dir=sealed, data_dir=refill.root / "data")


class Pretended:
    """A sandbox in which programs end as a test says, and evaluators really run."""

    def __init__(self, answer: Answer) -> None:
        self._answer, self._real = answer, LocalRunOnce()
        self.programs: list[Once] = []
        self.judged: dict[str, bytes] = {}

    async def run_once(self, once: Once) -> Completed:
        if once.untrusted:
            self.programs.append(once)
            return self._answer(once)
        folder = next(Path(host) for host, at, _ in once.mounts if at == SUBMISSION)
        self.judged = {path.name: path.read_bytes() for path in folder.iterdir()}
        return await self._real.run_once(once)


def delivered(tmp_path: Path, files: Mapping[str, bytes]) -> Path:
    write(tmp_path / "submission", {"_result.json": b"{}", **files})
    return tmp_path / "submission"


def runs_of(judged: Mapping[str, bytes]) -> Any:
    return json.loads(judged[RUNS_FILE])


async def test_reference_program_scores_exactly_one(
    case: ScoringCase, sandbox: LocalRunOnce, tmp_path: Path
) -> None:
    evaluation = await Scorer(sandbox).evaluate(case, delivered(tmp_path, GOOD), owner="r/g")
    assert (evaluation.valid, evaluation.score) == (True, 1.0)
    assert len(sandbox.seen) == len(DEMANDS) + 1
    assert {once.owner for once in sandbox.seen} == {"r/g"}


async def test_each_run_sees_the_program_and_one_instance_and_nothing_else(
    case: ScoringCase, sandbox: LocalRunOnce, tmp_path: Path
) -> None:
    await Scorer(sandbox).evaluate(case, delivered(tmp_path, GOOD))
    *programs, evaluator = sandbox.seen
    for once, name in zip(programs, sorted(DEMANDS), strict=True):
        assert once.untrusted
        assert once.argv == (ENV_PYTHON, "-B", "-s", f"{PROGRAM}/{ENTRY}")
        ((_, at, read_only),) = once.mounts
        assert (at, read_only) == (PROGRAM, True)
        assert once.stdin == instance_text(DEMANDS[name]).encode()
        assert (once.timeout_s, once.memory_bytes) == (10, 256 << 20)
        assert not once.stored
    assert not evaluator.untrusted
    assert SEALED in [at for _, at, _ in evaluator.mounts]
    assert PROGRAM not in [at for _, at, _ in evaluator.mounts]


async def test_evaluator_reads_answers_and_how_runs_ended(
    case: ScoringCase, tmp_path: Path
) -> None:
    def answer(once: Once) -> Completed:
        if once.stdin == instance_text(DEMANDS["second_shop.json"]).encode():
            return ended_with(1, b'{"orders": []}', b"Traceback")
        return ended_with(0, b'{"orders": []}')

    sandbox = Pretended(answer)
    evaluation = await Scorer(sandbox).evaluate(case, delivered(tmp_path, GOOD))
    assert sorted(sandbox.judged) == [RUNS_FILE, "first_shop.json", "third_shop.json"]
    good = {"reason": "exit", "exit_code": 0}
    assert runs_of(sandbox.judged) == {
        "entry": ENTRY,
        "runs": {
            "first_shop.json": good,
            "second_shop.json": {"reason": "exit", "exit_code": 1},
            "third_shop.json": good,
        },
    }
    assert [v.code for v in evaluation.violations] == ["no_answer", "plan_form"]


ENDS: dict[str, Completed] = {
    "crash": ended_with(1, b"half an ans"),
    "killed": ended_with(-9, b""),
    "timeout": ended_with(None, b'{"orders": []}', reason="timeout"),
    "memory": ended_with(None, b"", reason="memory"),
    "output": ended_with(None, b"x" * (2 << 20), reason="output"),
}


@pytest.mark.parametrize("kind", list(ENDS))
async def test_program_that_does_not_answer_is_the_agents_and_the_evaluator_decides(
    case: ScoringCase, tmp_path: Path, kind: str
) -> None:
    sandbox = Pretended(lambda once: ENDS[kind])
    evaluation = await Scorer(sandbox).evaluate(case, delivered(tmp_path, GOOD))
    assert list(sandbox.judged) == [RUNS_FILE]
    told = {"reason": ENDS[kind].reason, "exit_code": ENDS[kind].exit_code}
    assert list(runs_of(sandbox.judged)["runs"].values()) == [told] * len(DEMANDS)
    assert (evaluation.exit_code, evaluation.score) == (0, 0.0)
    assert [v.code for v in evaluation.violations] == ["no_answer"]


class Losing(Pretended):
    """Loses the runs with these numbers, and answers all others."""

    def __init__(self, *lost: int) -> None:
        super().__init__(self.answer)
        self.lost = lost

    def answer(self, once: Once) -> Completed:
        if len(self.programs) in self.lost:
            raise SandboxError("the box was lost", FailureKind.GRADER_SANDBOX)
        return ended_with(0, b"{}")


@pytest.mark.parametrize(("lost", "runs"), [((1,), 1), ((2, 3), 3), ((2, 4, 5), 5)])
async def test_run_that_the_sandbox_lost_is_ours(
    case: ScoringCase, tmp_path: Path, lost: tuple[int, ...], runs: int
) -> None:
    sandbox = Losing(*lost)
    with pytest.raises(EvaluatorFault) as caught:
        await Scorer(sandbox).evaluate(case, delivered(tmp_path, GOOD))
    assert (caught.value.kind, caught.value.detail) == (
        FailureKind.GRADER_SANDBOX,
        "the box was lost",
    )
    assert sandbox.judged == {}
    assert len(sandbox.programs) == runs


async def test_lost_run_does_not_cost_those_that_have_ended(
    case: ScoringCase, tmp_path: Path
) -> None:
    sandbox = Losing(2, 4)
    await Scorer(sandbox).evaluate(case, delivered(tmp_path, GOOD))
    assert sorted(sandbox.judged) == [RUNS_FILE, *sorted(DEMANDS)]
    fed = [once.stdin for once in sandbox.programs]
    assert len(fed) == 5
    assert (fed[1], fed[3]) == (fed[2], fed[4])


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"other.py": b"print(1)"},
        {f"deep/{ENTRY}": b"print(1)"},
        {"other.bin": bytes((1 << 20) + 1)},
    ],
    ids=["nothing", "another name", "another folder", "too much of another"],
)
async def test_nothing_is_run_without_the_entry_file(
    case: ScoringCase, tmp_path: Path, files: dict[str, bytes]
) -> None:
    sandbox = Pretended(lambda once: ended_with(0))
    evaluation = await Scorer(sandbox).evaluate(case, delivered(tmp_path, files))
    assert sandbox.programs == []
    assert runs_of(sandbox.judged) == {"entry": None, "runs": {}}
    assert (evaluation.exit_code, evaluation.stage) == (3, "structure")


async def test_link_to_a_program_is_no_program(case: ScoringCase, tmp_path: Path) -> None:
    sandbox = Pretended(lambda once: ended_with(0))
    (delivered(tmp_path, {}) / ENTRY).symlink_to(case.sealed_dir / "evaluator.py")
    evaluation = await Scorer(sandbox).evaluate(case, tmp_path / "submission")
    assert sandbox.programs == []
    assert evaluation.exit_code == 3


async def test_program_over_its_size_is_not_run(case: ScoringCase, tmp_path: Path) -> None:
    sandbox = Pretended(lambda once: ended_with(0))
    files = GOOD | {"weights.bin": bytes((1 << 20) + 1)}
    evaluation = await Scorer(sandbox).evaluate(case, delivered(tmp_path, files))
    assert sandbox.programs == []
    told = runs_of(sandbox.judged)
    assert told["entry"] == ENTRY
    assert told["runs"]["first_shop.json"] == {"reason": "size", "exit_code": None}
    assert (evaluation.exit_code, evaluation.score) == (0, 0.0)


async def test_report_of_an_extractor_is_no_part_of_the_program(
    case: ScoringCase, sandbox: LocalRunOnce, tmp_path: Path
) -> None:
    text = b"import os; print(sorted(os.listdir(os.path.dirname(__file__))))"
    program = case.program or pytest.fail("the case has no program")
    files = {ENTRY: text, "a/__pycache__/x.pyc": b"", "a/b.py": b"", "t.json": b"{}"}
    folder = await answered(
        sandbox,
        program,
        delivered(tmp_path, files),
        case.sealed_dir,
        tmp_path,
        max_bytes=1 << 20,
    )
    assert (folder / "first_shop.json").read_text() == "['a', 'policy.py', 't.json']\n"


class Answering:
    """Every program answers as much as it may."""

    async def run_once(self, once: Once) -> Completed:
        assert once.stdin == bytes(2 << 20)
        return ended_with(0, bytes(2 << 20))


async def test_many_large_instances_and_answers_are_not_held_together(tmp_path: Path) -> None:
    write(tmp_path, {f"truth/instances/{n:02}": bytes(2 << 20) for n in range(20)})
    program = Program(entry=ENTRY, instance_s=10, instance_mib=256)
    submission = delivered(tmp_path, GOOD)
    tracemalloc.start()
    try:
        folder = await answered(
            Answering(), program, submission, tmp_path, tmp_path, max_bytes=1 << 20
        )
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(list(folder.iterdir())) == 21
    assert most < 20 << 20


async def test_equal_programs_give_equal_folders(
    case: ScoringCase, sandbox: LocalRunOnce, tmp_path: Path
) -> None:
    text = b"print(hash('the same everywhere'), {'a', 'b', 'c'})"
    hashes = set()
    for number in range(3):
        place = tmp_path / str(number)
        place.mkdir()
        submission = delivered(place, {ENTRY: text})
        program = Program(entry=ENTRY, instance_s=10, instance_mib=256)
        folder = await answered(
            sandbox, program, submission, case.sealed_dir, place, max_bytes=1 << 20
        )
        hashes.add(output_hash(folder))
    assert len(hashes) == 1


async def test_equal_output_is_run_once(
    case: ScoringCase, sandbox: LocalRunOnce, tmp_path: Path
) -> None:
    scorer, submission = Scorer(sandbox), delivered(tmp_path, GOOD)
    digest = output_hash(submission)
    first = await scorer.evaluate(case, submission, digest)
    assert await scorer.evaluate(case, submission, digest) == first
    assert len(sandbox.seen) == len(DEMANDS) + 1


# rules 20 and 22: the program with its local imports, byte for byte

WORK = {"work/plan.py": with_helper()[ENTRY], f"work/{HELPER}": with_helper()[HELPER]}
NAMED = {ENTRY: ["work/plan.py"], HELPER: [f"work/{HELPER}"]}


@pytest.mark.parametrize(
    ("output", "named", "expected"),
    [
        pytest.param(with_helper(), NAMED, "clean", id="with its module"),
        pytest.param(
            with_helper() | {"pkg/deep/stock.py": with_helper()[HELPER]},
            NAMED | {"pkg/deep/stock.py": [f"work/{HELPER}"]},
            "clean",
            id="module elsewhere",
        ),
        pytest.param({ENTRY: with_helper()[ENTRY]}, NAMED, "clean", id="module left out"),
        pytest.param(
            with_helper() | {ENTRY: with_helper()[ENTRY] + b"\n"},
            NAMED,
            "rejected",
            id="line added",
        ),
        pytest.param(
            with_helper() | {HELPER: with_helper()[HELPER].replace(b"16", b"17")},
            NAMED,
            "rejected",
            id="module changed",
        ),
        pytest.param(
            with_helper() | {HELPER: with_helper()[HELPER].replace(b"    ", b"\t")},
            NAMED,
            "rejected",
            id="module indented anew",
        ),
        pytest.param(
            with_helper() | {"made_up.py": b"SHELF = 16\n"}, NAMED, "rejected", id="module invented"
        ),
        pytest.param(
            with_helper() | {"made_up.py": b"SHELF = 16\n"},
            NAMED | {"made_up.py": [f"work/{HELPER}"]},
            "rejected",
            id="module invented and named",
        ),
        pytest.param(
            with_helper() | {"made_up.PY": b"SHELF = 16\n"},
            NAMED | {"made_up.PY": [f"work/{HELPER}"]},
            "rejected",
            id="other suffix",
        ),
        pytest.param(
            with_helper() | {"tables.json": b'{"shelf": 16}'}, NAMED, "rejected", id="data invented"
        ),
    ],
)
async def test_rule_22_code_comes_with_its_modules_byte_for_byte(
    refill: Case,
    sandbox: LocalRunOnce,
    tmp_path: Path,
    output: dict[str, bytes],
    named: dict[str, list[str]],
    expected: str,
) -> None:
    write(tmp_path / "w", WORK)
    write(tmp_path / "o", output)
    report = reported(WORK, named)
    found = await check(sandbox, tmp_path / "w", tmp_path / "o", refill.submission_schema, report)
    assert found.verdict == expected, found.findings


@pytest.mark.parametrize("path", ["data/stock.py", "../stock.py", "/etc/hostname", "link.py"])
async def test_rule_20_module_is_the_agents_own(
    refill: Case, sandbox: LocalRunOnce, tmp_path: Path, path: str
) -> None:
    write(tmp_path / "w", WORK | {"data/stock.py": b"x = 1\n"})
    (tmp_path / "w" / "link.py").symlink_to(tmp_path / "w/data/stock.py")
    write(tmp_path / "o", with_helper() | {"more.py": b"x = 1\n"})
    report = reported(WORK | {path: b"x = 1\n"}, NAMED | {"more.py": [path]})
    found = await check(sandbox, tmp_path / "w", tmp_path / "o", refill.submission_schema, report)
    assert found.verdict == "rejected"


@pytest.mark.parametrize(
    ("files", "vote"), [(with_helper(), 1.0), ({ENTRY: with_helper()[ENTRY]}, 0.0)]
)
async def test_rule_20_route_runs_the_program_with_its_modules(
    refill: Case, sandbox: LocalRunOnce, tmp_path: Path, files: dict[str, bytes], vote: float
) -> None:
    report = reported(WORK, {name: NAMED[name] for name in files})
    write(tmp_path / "w", WORK)
    write(tmp_path / "o", files | {"_result.json": json.dumps(report.jsonable()).encode()})
    extraction = Extraction(sandbox, scored_as(refill), refill.submission_schema, tmp_path / "w")
    route = await extraction.route(0, "offline/x", tmp_path / "o")
    assert (route.vote, route.failure) == (vote, None), route.detail


# rule 24: what has the target name already


async def passed(
    refill: Case, sandbox: LocalRunOnce, tmp_path: Path, files: Mapping[str, bytes], summary: str
) -> tuple[Evaluation | None, dict[str, Any]]:
    """Return evaluation and sources of the passthrough route; nothing if the panel must look."""
    write(tmp_path / "w", files)
    place = scored_as(refill)

    async def evaluate(folder: Path) -> Evaluation:
        return await Scorer(sandbox).evaluate(place, folder)

    route = await passthrough_route(
        tmp_path / "w",
        refill.submission_schema,
        summary,
        tmp_path / "o",
        evaluate,
        executable=True,
    )
    if route is None or route.report is None:
        return None, {}
    return route.evaluation, {name: refs[0].path for name, refs in route.report.sources.items()}


@pytest.mark.parametrize("below", ["", "out/"])
async def test_rule_24_program_takes_the_modules_beside_it_along(
    refill: Case, sandbox: LocalRunOnce, tmp_path: Path, below: str
) -> None:
    files = {f"{below}{name}": content for name, content in with_helper().items()}
    more = {
        f"{below}pkg/__init__.py": b"",
        f"{below}.venv/lib/x.py": b"",
        "data/given.py": b"",
        "NOTES.md": b"",
    }
    evaluation, sources = await passed(
        refill, sandbox, tmp_path, files | more, f"The program is {below}{ENTRY}."
    )
    assert evaluation is not None
    assert evaluation.score == 1.0
    expected = [ENTRY, "pkg/__init__.py", HELPER]
    assert sources == {name: f"{below}{name}" for name in expected}


async def test_rule_24_crashing_program_is_judged_without_a_panel(
    refill: Case, sandbox: LocalRunOnce, tmp_path: Path
) -> None:
    evaluation, _ = await passed(refill, sandbox, tmp_path, {ENTRY: CRASHING.encode()}, "Done.")
    assert evaluation is not None
    assert (evaluation.score, evaluation.stage) == (0.0, "constraint")


@pytest.mark.parametrize(
    ("files", "summary"),
    [
        pytest.param({"plan.py": b"x"}, "Done.", id="foreign name"),
        pytest.param(GOOD | {"policy_v2.py": b"x"}, "Final: policy_v2.py", id="another named"),
        pytest.param(GOOD | {f"old/{ENTRY}": b"x"}, "Done.", id="two of them"),
        pytest.param(
            GOOD | {f"lib/m{n}.py": b"" for n in range(MAX_MODULES)}, "Done.", id="too many modules"
        ),
        pytest.param(GOOD | {"big.py": bytes(5 << 20)}, "Done.", id="modules too large"),
        pytest.param(GOOD | {"a\nb.py": b""}, "Done.", id="odd name"),
    ],
)
async def test_rule_24_doubtful_program_goes_to_the_panel(
    refill: Case, sandbox: LocalRunOnce, tmp_path: Path, files: dict[str, bytes], summary: str
) -> None:
    assert await passed(refill, sandbox, tmp_path, files, summary) == (None, {})
    assert sandbox.seen == []
