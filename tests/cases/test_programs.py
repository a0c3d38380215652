"""Executable cases: what the loader refuses, and how an author's programs are run."""

import json
import shutil
from pathlib import Path

import pytest

from fde_ray.cases.admission import RULES, Bench, check_case
from fde_ray.cases.authoring.probe_runs import evaluate_files
from fde_ray.cases.authoring.program_runs import answered_files
from fde_ray.cases.authoring.writers import write_manifest
from fde_ray.cases.foreign import MAX_DATA_BYTES
from fde_ray.cases.package import load_case
from fde_ray.cases.programs import MAX_INSTANCES, RUNS_FILE, read_instances
from fde_ray.cases.records import Case, Program
from fde_ray.cases.staging import sealed_archive, visible_archive
from fde_ray.model.boxes import MAX_KEPT_BYTES
from fde_ray.model.errors import CaseError
from tests.support.executable_case import (
    DEMANDS,
    ENTRY,
    FOLDER,
    HELPER,
    PROGRAMS,
    build,
    policy,
    with_helper,
)

INSTANCES = "sealed/truth/instances"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def refill(built: Path) -> Case:
    return load_case(built)


@pytest.fixture(scope="module")
def bench(refill: Case) -> Bench:
    return Bench(refill)


@pytest.fixture
def root(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / FOLDER))


def refused(root: Path) -> str:
    """Return the one line that the loader says when only the manifest was renewed."""
    write_manifest(root)
    with pytest.raises(CaseError) as caught:
        load_case(root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def changed(root: Path, name: str, old: str, new: str) -> None:
    text = (root / name).read_text(encoding="utf-8")
    assert old in text
    (root / name).write_text(text.replace(old, new), encoding="utf-8")


def test_an_executable_case_tells_its_program_and_its_instances(refill: Case) -> None:
    assert refill.meta.program == Program(entry=ENTRY, instance_s=10, instance_mib=256)
    found = read_instances(refill.root / "sealed")
    assert [instance.name for instance in found] == sorted(DEMANDS)
    assert json.loads(found[0].content)["demand"] == list(DEMANDS["first_shop.json"])


def test_instances_are_sealed_and_count_in_the_scoring_hash(refill: Case, root: Path) -> None:
    (root / INSTANCES / "fourth_shop.json").write_text("{}\n")
    write_manifest(root)
    other = load_case(root)
    assert other.scoring_hash != refill.scoring_hash
    assert visible_archive(other) == visible_archive(refill)
    assert sealed_archive(other) != sealed_archive(refill)


PROGRAM_TABLE = '[program]\nentry = "policy.py"\ninstance_s = 10\ninstance_mib = 256\n'


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        pytest.param(PROGRAM_TABLE, "", "needs a table [program] of entry", id="no program"),
        pytest.param(
            'kind = "executable"', 'kind = "artifact"', "remove it", id="program of an artifact"
        ),
        pytest.param('"policy.py"', '"plan.py"', "no file of submission_schema", id="not wanted"),
        pytest.param('"policy.py"', '"policy.sh"', "no Python file", id="not Python"),
        pytest.param('"policy.py"', '"../policy.py"', "program.entry", id="escape"),
        pytest.param('"policy.py"', '"_policy.py"', "program.entry", id="underscore"),
        pytest.param('"policy.py"', '""', "program.entry: '' is no file name", id="empty entry"),
        pytest.param('"policy.py"', '"' + "x" * 5000 + '.py"', "program.entry", id="huge entry"),
        pytest.param('entry = "policy.py"', "entry = 1", "program.entry", id="mistyped entry"),
        pytest.param('entry = "policy.py"\n', "", "program.entry", id="no entry"),
        pytest.param("instance_s = 10", "instance_s = 0", "program.instance_s", id="no time"),
        pytest.param("instance_s = 10", "instance_s = 901", "program.instance_s", id="too long"),
        pytest.param("instance_s = 10", "instance_s = nan", "program.instance_s", id="nan"),
        pytest.param("instance_s = 10", "instance_s = 1e300", "program.instance_s", id="1e300"),
        pytest.param(
            "instance_mib = 256", "instance_mib = 8193", "program.instance_mib", id="too much"
        ),
        pytest.param(PROGRAM_TABLE, PROGRAM_TABLE + "shell = true\n", "shell", id="unknown key"),
        pytest.param("instance_s = 10", "instance_sec = 10", "program.instance_sec", id="misspelt"),
        pytest.param(PROGRAM_TABLE, PROGRAM_TABLE * 2, "line", id="twice"),
        pytest.param(
            "instance_s = 10", "instance_s = 11", "program_instance_s: must be 11", id="params"
        ),
    ],
)
def test_a_wrong_program_table_is_told_in_one_line(
    root: Path, old: str, new: str, says: str
) -> None:
    changed(root, "case.toml", old, new)
    assert says in refused(root)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"program_instance_mib": 256', '"program_instance_mib": 512', "must be 256"),
        ('"program_instance_s": 10', '"program_instance_s": "10"', "must be 10"),
        ('"program_instance_s": 10', '"program_instance_s": true', "must be 10"),
        ('"program_instance_s"', '"instance_s"', "program_instance_s: must be 10"),
        ('"program_instance_s"', '"canary"', "twice"),
    ],
)
def test_params_repeat_the_limits_of_the_program(root: Path, old: str, new: str, says: str) -> None:
    changed(root, "sealed/params.json", old, new)
    text = refused(root)
    assert "params.json" in text
    assert says in text


@pytest.mark.parametrize("content", [b"", b"[]", b"7", b"{", b"[" * 100_000, b"\xff"])
def test_unusable_params_are_named(root: Path, content: bytes) -> None:
    (root / "sealed/params.json").write_bytes(content)
    assert "params.json" in refused(root)


def test_the_entry_is_text_for_the_schema(root: Path) -> None:
    changed(root, "sealed/submission_schema.json", '"text"', '"csv"')
    assert "the format 'text'" in refused(root)


def test_an_executable_case_without_instances_is_refused(root: Path) -> None:
    shutil.rmtree(root / INSTANCES)
    assert "holds no instance" in refused(root)
    (root / INSTANCES).write_text("one file\n")
    assert "holds no instance" in refused(root)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("deep/shop.json", b"{}", "in no further folder"),
        ("_runs.json", b"{}", "name"),
        (".hidden", b"{}", "name"),
        ("-rf", b"{}", "name"),
        ("a shop.json", b"{}", "name"),
        ("laden-ä.json", b"{}", "name"),
        ("x" * 101, b"{}", "name"),
        ("two\nlines", b"{}", "control characters"),
        ("empty.json", b"", "is empty"),
        ("huge.json", b" " * (MAX_KEPT_BYTES + 1), "larger than 2097152 bytes, the most of an in"),
        ("monster.json", b" " * (MAX_DATA_BYTES + 1), "larger than 2097152 bytes, the most of an"),
    ],
)
def test_an_instance_that_cannot_be_fed_is_refused(
    root: Path, name: str, content: bytes, says: str
) -> None:
    path = root / INSTANCES / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    assert says in refused(root)


def test_the_largest_instance_is_read_whole(root: Path) -> None:
    (root / INSTANCES / "a_large.json").write_bytes(b"{}" + b" " * (MAX_KEPT_BYTES - 2))
    write_manifest(root)
    first = read_instances(load_case(root).root / "sealed")[0]
    assert len(first.content) == MAX_KEPT_BYTES


def test_a_case_has_no_more_instances_than_can_be_run(root: Path) -> None:
    for number in range(MAX_INSTANCES):
        (root / INSTANCES / f"{number}.json").write_text("{}")
    assert f"more than {MAX_INSTANCES}" in refused(root)


def test_all_runs_of_a_program_end_within_the_life_of_their_pod(root: Path) -> None:
    for number in range(27):
        (root / INSTANCES / f"{number}.json").write_text("{}")
    changed(root, "case.toml", "instance_s = 10", "instance_s = 900")
    changed(root, "sealed/params.json", '"program_instance_s": 10', '"program_instance_s": 900')
    assert "program.instance_s: must be at most 720 for 30 instances" in refused(root)


def test_the_schema_leaves_no_doubt_which_program_is_run(root: Path) -> None:
    path = root / "sealed/submission_schema.json"
    schema = json.loads(path.read_text())
    schema["files"].append({**schema["files"][0], "name": "other.py", "aliases": []})
    path.write_text(json.dumps(schema))
    assert "wants 'other.py', too" in refused(root)


def test_a_link_is_no_instance(root: Path) -> None:
    (root / INSTANCES / "passwd.json").symlink_to("/etc/passwd")
    with pytest.raises(CaseError, match="is a link"):
        load_case(root)


# programs on the author's machine


def test_the_case_passes_every_rule_that_is_decided_here(refill: Case) -> None:
    results = check_case(refill, rules=sorted(set(RULES) - {"A9", "A10", "A21", "A22"}))
    assert [(r.rule, r.detail) for r in results if r.ok is False] == []
    assert [r.rule for r in results if r.ok is None] == ["A17"]


def test_a_probe_brings_the_modules_that_its_program_imports(bench: Bench, refill: Case) -> None:
    files = with_helper()
    assert bench.run(files).score == 1.0
    without = answered_files(refill, {ENTRY: files[ENTRY]})
    assert sorted(without) == [RUNS_FILE]
    assert json.loads(without[RUNS_FILE])["runs"]["first_shop.json"] == {
        "reason": "exit",
        "exit_code": 1,
    }


def test_modules_of_a_foreign_probe_are_kept(root: Path, bench: Bench) -> None:
    folder = root / "sealed/probes/greedy_full/files"
    (folder / HELPER).write_bytes(with_helper()[HELPER])
    write_manifest(root)
    found = Bench(load_case(root)).probe_files("greedy_full")
    assert found[HELPER] == with_helper()[HELPER]
    assert found[ENTRY] == PROGRAMS["greedy_full"][1].encode()


def test_a_visible_instance_is_a_leak(root: Path) -> None:
    shutil.copy(root / INSTANCES / "first_shop.json", root / "data" / "sample.json")
    write_manifest(root)
    (result,) = check_case(load_case(root), rules=["A12"])
    assert result.detail == "data/sample.json is the hidden first_shop.json"


def test_a_program_that_answers_by_chance_is_not_deterministic(root: Path) -> None:
    text = policy().replace('{"orders"', '{"luck": __import__("os").urandom(8).hex(), "orders"')
    (root / "sealed/best_solution" / ENTRY).write_text(text)
    write_manifest(root)
    (result,) = check_case(load_case(root), rules=["A19"])
    assert (result.ok, result.detail) == (False, "3 different outputs in 3 runs")


FILL = "import sys\nsys.stdout.write('x' * (3 << 20))\n"
ENDS: dict[str, tuple[str, str, int | None]] = {
    "crash": ("raise ValueError('no')", "exit", 1),
    "exit code": ("raise SystemExit(7)", "exit", 7),
    "killed": ("import os; os.kill(os.getpid(), 9)", "exit", -9),
    "no Python": ("to be or not to be", "exit", 1),
    "hang": ("while True: pass", "timeout", None),
    "child that hangs": (
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while True: pass'])",
        "timeout",
        None,
    ),
    "memory": ("x = bytearray(1 << 30)", "exit", 1),
    "output": (FILL, "output", None),
    "answer before a crash": ("print('{}', flush=True)\nraise SystemExit(1)", "exit", 1),
}


@pytest.mark.parametrize("kind", list(ENDS))
def test_a_program_without_an_answer_scores_zero(root: Path, kind: str) -> None:
    text, reason, exit_code = ENDS[kind]
    for name in list(DEMANDS)[1:]:
        (root / INSTANCES / name).unlink()
    changed(root, "case.toml", "instance_s = 10", "instance_s = 1")
    changed(root, "sealed/params.json", 'instance_s": 10', 'instance_s": 1')
    write_manifest(root)
    case = load_case(root)
    answers = answered_files(case, {ENTRY: text.encode()})
    assert json.loads(answers[RUNS_FILE]) == {
        "entry": ENTRY,
        "runs": {"first_shop.json": {"reason": reason, "exit_code": exit_code}},
    }
    assert list(answers) == [RUNS_FILE]
    run = evaluate_files(root, answers)
    assert (run.status, run.score, run.codes) == (0, 0.0, ("no_answer",))


def test_nothing_is_run_when_no_program_is_there(refill: Case) -> None:
    answers = answered_files(refill, {"other.py": b"print(1)"})
    assert {name: json.loads(text) for name, text in answers.items()} == {
        RUNS_FILE: {"entry": None, "runs": {}}
    }
    run = evaluate_files(refill.root, answers)
    assert (run.status, run.codes) == (3, ("missing_file",))


def test_an_artifact_has_no_program_to_run(rolling: Case) -> None:
    with pytest.raises(ValueError, match="wants no program"):
        answered_files(rolling, {})


@pytest.mark.parametrize("name", ["../x.py", "/tmp/x.py"])
def test_a_program_stays_inside_its_folder(refill: Case, name: str) -> None:
    with pytest.raises(ValueError, match="leaves the folder"):
        answered_files(refill, {name: b"x"})


def test_a_program_is_given_one_instance_and_little_else(refill: Case) -> None:
    text = (
        "import json, os, sys\n"
        "seen = [sys.stdin.read(), os.listdir(), sys.argv[1:], sorted(os.environ)]\n"
        "print(json.dumps(seen))\n"
    )
    answers = answered_files(refill, {ENTRY: text.encode()})
    for instance in read_instances(refill.root / "sealed"):
        given, folder, arguments, variables = json.loads(answers[instance.name])
        assert given.encode() == instance.content
        assert (folder, arguments) == ([], [])
        assert set(variables) <= {"HOME", "LANG", "LC_CTYPE", "PATH", "PYTHONHASHSEED"}


@pytest.mark.parametrize(
    ("file", "code", "told"),
    [
        (ENTRY, "raise SystemExit(3)\n", "policy.py has no answer to first_shop.json (exit 3)"),
        (ENTRY, "print('x' * (3 << 20))\n", "no answer to first_shop.json (output)"),
        ("other.py", policy(), "the program was not delivered"),
    ],
    ids=["crash", "too much", "no entry"],
)
def test_a_reference_without_an_answer_says_how_its_program_ended(
    root: Path, file: str, code: str, told: str
) -> None:
    best = root / "sealed" / "best_solution"
    (best / ENTRY).unlink()
    (best / file).write_text(code)
    write_manifest(root)
    (result,) = check_case(load_case(root), rules=["A2"])
    assert result.ok is False
    assert told in result.detail
    assert "not valid: " in result.detail


def test_a_greedy_program_that_ends_without_an_answer_is_told_of(root: Path) -> None:
    (code,) = (root / "sealed" / "probes" / "greedy_full" / "files").rglob("*.py")
    code.write_text("raise SystemExit(7)\n")
    write_manifest(root)
    (result,) = check_case(load_case(root), rules=["A8"])
    assert result.ok is False
    assert "policy.py has no answer to first_shop.json (exit 7)" in result.detail


def test_a_greedy_program_that_is_only_bad_has_no_such_excuse(root: Path) -> None:
    files = root / "sealed" / "probes" / "greedy_full" / "files"
    (code,) = files.rglob("*.py")
    code.write_text(policy())
    write_manifest(root)
    (result,) = check_case(load_case(root), rules=["A8"])
    assert result.detail == "greedy_full 1.000 is not in 0.3-0.85"
