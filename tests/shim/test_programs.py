"""What the runner of a scoring pod does with a program: here not alone, so it kills only that."""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from fde_ray.shim.boxes import ENV_PYTHON
from fde_ray.shim.pod_staging import PYTHON
from fde_ray.shim.programs import Programs

MIB = 1 << 20


def job(*argv: str, **changes: Any) -> dict[str, Any]:
    return {
        "argv": list(argv),
        "env": {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        "workdir": "/",
        "timeout_s": 20.0,
        "memory_bytes": 512 * MIB,
        "file_bytes": 8 * MIB,
        "stdout_bytes": MIB,
        "stderr_bytes": 1000,
        "stdin": "",
    } | changes


def python(program: str, **changes: Any) -> dict[str, Any]:
    return job(sys.executable, "-I", "-S", "-c", program, **changes)


def ran(wanted: dict[str, Any], *scratch: Path, files: tuple[Path, ...] = ()) -> dict[str, Any]:
    folders, kept = [str(path) for path in scratch], [str(path) for path in files]
    result = Programs(is_alone=False, scratch=folders, files=kept).run(wanted)
    for name in ("stdout", "stderr"):
        result[name] = base64.b64decode(result[name])
    return result


def test_a_program_says_how_it_ended_and_what_it_wrote() -> None:
    result = ran(python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"))
    assert (result["reason"], result["exit_code"]) == ("exit", 3)
    assert (result["stdout"], result["stderr"]) == (b"out\n", b"err\n")
    assert result["duration_s"] > 0


def test_a_program_that_a_signal_ended_says_so() -> None:
    result = ran(python("import os; os.kill(os.getpid(), 9)"))
    assert (result["reason"], result["exit_code"]) == ("exit", -9)


def test_a_program_gets_its_stdin_whole_and_then_the_end() -> None:
    text = b"x" * (3 * MIB)
    fed = base64.b64encode(text).decode()
    result = ran(python("import sys; print(len(sys.stdin.buffer.read()))", stdin=fed))
    assert result["stdout"] == b"%d\n" % len(text)


def test_a_program_sees_no_variable_and_no_descriptor_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FDE_SECRET", "canary")
    held = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(held, True)
    program = "import os; print(sorted(os.environ)); print(os.listdir('/proc/self/fd'))"
    try:
        said = ran(python(program))["stdout"].decode()
    finally:
        os.close(held)
    # The fourth descriptor is the one that lists them.
    assert said == "['LANG', 'PATH']\n['0', '1', '2', '3']\n"


def test_a_program_is_stopped_at_its_time_with_its_children() -> None:
    program = "import os, time; os.fork(); print(os.getpid(), flush=True); time.sleep(60)"
    result = ran(python(program, timeout_s=1.0))
    assert (result["reason"], result["exit_code"]) == ("timeout", None)
    pids = [int(pid) for pid in result["stdout"].split()]
    assert len(pids) == 2
    for pid in pids:
        # Gone, or a zombie of whoever inherited it.
        path = Path(f"/proc/{pid}/stat")
        assert not path.exists() or ") Z " in path.read_text()


def test_a_program_is_stopped_at_its_memory() -> None:
    program = "import time; held = b'x' * (100 << 20); time.sleep(60)"
    result = ran(python(program, memory_bytes=50 * MIB))
    assert (result["reason"], result["exit_code"]) == ("memory", None)


def test_a_program_that_floods_its_stdout_is_stopped_and_the_first_bytes_are_kept() -> None:
    result = ran(python("while True: print('x' * 1000)", stdout_bytes=5000))
    assert (result["reason"], result["exit_code"]) == ("output", None)
    assert len(result["stdout"]) == 5000


def test_a_program_that_floods_its_stderr_ends_by_itself() -> None:
    result = ran(python("import sys; sys.stderr.write('e' * 1_000_000)"))
    assert (result["reason"], result["exit_code"]) == ("exit", 0)
    assert result["stderr"] == b"e" * 1000


def test_a_program_that_closes_its_streams_is_waited_for() -> None:
    result = ran(python("import os, time; [os.close(n) for n in range(3)]; time.sleep(0.3)"))
    assert (result["reason"], result["exit_code"]) == ("exit", 0)
    assert result["duration_s"] >= 0.3


def test_no_file_grows_beyond_the_limit(tmp_path: Path) -> None:
    program = "import sys; open(sys.argv[1], 'wb').write(b'x' * (16 << 20))"
    wanted = python(program)
    wanted["argv"].append(str(tmp_path / "large"))
    assert ran(wanted)["exit_code"] == 1
    assert (tmp_path / "large").stat().st_size <= 8 * MIB


def test_what_a_program_leaves_behind_is_cleared_away(tmp_path: Path) -> None:
    program = (
        "import os, sys; os.chdir(sys.argv[1]); os.makedirs('a/b'); open('a/b/f', 'w').close(); "
        "os.symlink('/', 'link'); os.mkfifo('pipe'); open(b'\\xff', 'w').close(); os.chmod('a', 0)"
    )
    wanted = python(program)
    wanted["argv"].append(str(tmp_path))
    assert ran(wanted, tmp_path)["exit_code"] == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("argv", "workdir", "says"),
    [
        (("/nowhere/program",), "/", "No such file"),
        (("/etc",), "/", "Permission denied"),
        (("/bin/true",), "/nowhere", "No such file"),
        (("a\0b",), "/", "null byte"),
    ],
)
def test_a_program_that_cannot_be_started_has_not_failed(
    argv: tuple[str, ...], workdir: str, says: str
) -> None:
    result = Programs(is_alone=False, scratch=[]).run(job(*argv, workdir=workdir))
    assert result["reason"] == "lost"
    assert says in result["detail"]
    assert "exit_code" not in result


def test_the_best_python_is_the_image_s_own_where_there_is_no_other() -> None:
    best = ENV_PYTHON if os.path.exists(ENV_PYTHON) else PYTHON
    result = ran(job(ENV_PYTHON, "-I", "-S", "-c", "import sys; print(sys.executable)"))
    assert result["stdout"].decode().strip() == best


def test_a_file_that_everybody_may_write_to_is_empty_again(tmp_path: Path) -> None:
    log, missing = tmp_path / "termination-log", tmp_path / "missing"
    log.touch()
    wrote = f"open({str(log)!r}, 'w').write('the instance')"
    assert ran(python(wrote), files=(log, missing))["exit_code"] == 0
    assert log.read_bytes() == b""
    assert not missing.exists()
