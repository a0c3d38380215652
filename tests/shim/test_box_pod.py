"""A scoring pod's two programs on loopback: real shim, real runner as PID 1, a scripted plane."""

from __future__ import annotations

import base64
import json
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fde_ray.model.boxes import BoxResult
from fde_ray.sandbox.packing import build_zipapp
from tests.sandbox.fake_plane import SECRET, archive, refusal
from tests.shim.loopback_pod import LoopbackPod, TcpPlane, until

pytestmark = pytest.mark.sandbox
GRADER = "/grader"
THREADS = """
import threading, time
threading.stack_size(32768)
for _ in range(300): threading.Thread(target=time.sleep, args=(60,)).start()
"""
FORKS = "import os, time\nfor _ in range(6): os.fork()\ntime.sleep(60)"


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("bwrap") is None:
        pytest.fail("these tests need bubblewrap: sudo apt-get install -y bubblewrap")
    return build_zipapp(tmp_path_factory.mktemp("home"))


class BoxPlane(TcpPlane):
    """Hands out `jobs` one by one, then the folders they name; dismisses the box after the last."""

    role = "score"

    def __init__(self, folder: Path, **inputs: Any) -> None:
        super().__init__(folder, **inputs)
        self.jobs: list[dict[str, Any]] = []
        self.results: list[dict[str, Any]] = []
        self.objects: dict[str, Any] = {}
        self.fetched: list[str] = []
        self.refuses_results = False
        self.goes_on = threading.Event()
        """Set = no dismissal: the box waits for more."""

    def answer(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Any:
        route = path.partition("?")[0]
        token = headers.get("authorization", "").removeprefix("Bearer ")
        if route.startswith("/v1/job") and self.tokens.get(token) == self.role:
            return self._job_route(method, route, body)
        return super().answer(method, path, body, headers)

    def _job_route(self, method: str, route: str, body: bytes) -> Any:
        number = len(self.results)
        if method == "POST" and self.refuses_results:
            return refusal(422, "agent", "bad_request")
        if method == "POST":
            self.results.append(json.loads(body))
            return {}
        if "/folders/" in route:
            key = self.jobs[number]["folders"][int(route.rpartition("/")[2])]["key"]
            self.fetched.append(key)
            return self.objects[key]
        if number < len(self.jobs):
            return {"job_id": f"j{number}", "job": self.jobs[number]}
        if self.goes_on.is_set():
            time.sleep(0.1)
            return {"job_id": None, "job": None}
        return refusal(403, "agent", "not_live")

    def said(self, number: int = 0) -> str:
        return base64.b64decode(self.results[number]["stdout"]).decode()

    def ends(self) -> list[tuple[str, int | None]]:
        return [(one["reason"], one.get("exit_code")) for one in self.results]


@pytest.fixture
def role() -> str:
    return "score"


@pytest.fixture
def plane(tmp_path: Path, role: str) -> Iterator[BoxPlane]:
    subject = f"ab/cd/{role}.1"
    with (plane := BoxPlane(tmp_path, subject=subject, role=role)).running():
        plane.role = role
        yield plane


ENDS_ITSELF = pytest.mark.parametrize(
    ("role", "failure"), [("score", "shim_lost"), ("exec", "agent_error")]
)
"""What grades can only lose its container; what an agent made can end it."""


@pytest.fixture
def pod(tmp_path: Path, pyz: Path, plane: BoxPlane) -> LoopbackPod:
    pod = LoopbackPod(tmp_path, pyz, plane, GRADER)
    pod.read_only.add(GRADER)
    return pod


def python(program: str, **changes: Any) -> dict[str, Any]:
    return {
        "argv": ["/usr/bin/python3", "-I", "-S", "-c", program],
        "env": {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        "workdir": "/home/agent",
        "folders": [],
        "timeout_s": 20.0,
        "memory_bytes": 512 << 20,
        "file_bytes": 1 << 20,
        "stdout_bytes": 1 << 20,
        "stderr_bytes": 1 << 18,
        "stdin": "",
    } | changes


def folder(at: str, key: str, below: str = "") -> dict[str, str]:
    return {"at": f"{GRADER}/{at}", "key": key, "below": below}


def served(pod: LoopbackPod) -> None:
    with pod.running():
        assert pod.wait() == 0
    assert pod.last_word()["phase"] == "ended"


def test_programs_read_the_folders_that_they_name_and_no_others(
    pod: LoopbackPod, plane: BoxPlane
) -> None:
    plane.objects = {
        "sealed": archive({"evaluator.py": b"print(1)"}),
        "visible": archive({"instruction.md": b"do", "data/a.csv": b"x\n1\n"}),
        "out-1": archive({"plan.csv": b"one"}),
        "out-2": archive({"plan.csv": b"two"}),
    }
    walk = (
        "import os\n"
        "for folder, _, names in sorted(os.walk('/grader')):\n"
        "    for name in sorted(names): print(os.path.join(folder, name))\n"
        "print(open('/grader/submission/plan.csv').read())"
    )
    shared = [folder("sealed", "sealed"), folder("data", "visible", "data")]
    plane.jobs = [
        python(walk, folders=[*shared, folder("submission", "out-1")]),
        python(walk, folders=[*shared, folder("submission", "out-2")]),
        python(walk.rpartition("\n")[0], folders=[folder("tool/checker", "out-1")]),
    ]
    served(pod)
    for number, text in enumerate(("one", "two")):
        assert plane.said(number).split() == [
            "/grader/data/a.csv",
            "/grader/sealed/evaluator.py",
            "/grader/submission/plan.csv",
            text,
        ]
    assert plane.said(2).split() == ["/grader/tool/checker/plan.csv"]
    assert plane.fetched == ["sealed", "visible", "out-1", "out-2", "out-1"], "kept ones stay"
    assert len(plane.started) == 1
    assert plane.started[0]["gate"]["rounds"] == 3


def test_a_program_can_neither_write_to_its_folders_nor_learn_a_secret(
    pod: LoopbackPod, plane: BoxPlane
) -> None:
    plane.objects = {"out": archive({"plan.csv": b"one"})}
    program = (
        "import glob, os\n"
        "def tried(do):\n"
        "    try: return do()\n"
        "    except OSError as error: return error.strerror\n"
        "print(tried(lambda: open('/grader/submission/plan.csv', 'w')))\n"
        "print(tried(lambda: open('/grader/new', 'w')))\n"
        "print(sorted(os.environ), os.getuid(), os.getpgid(0) == os.getpid())\n"
        "print(os.listdir('/proc/self/fd'))\n"
        "print(tried(lambda: os.readlink('/proc/1/fd/0')))\n"
        "print(tried(lambda: open('/proc/1/mem', 'rb')))\n"
    )
    plane.jobs = [python(program, folders=[folder("submission", "out")])]
    served(pod)
    said = plane.said().splitlines()
    assert said[:2] == ["Read-only file system"] * 2
    assert said[2] == "['LANG', 'PATH'] 1000 True"
    assert said[3] == "['0', '1', '2', '3']"
    assert said[4:] == ["Permission denied"] * 2
    assert SECRET not in plane.said()
    assert "canary" not in plane.said()


def test_nothing_of_a_program_is_left_for_the_next_one(pod: LoopbackPod, plane: BoxPlane) -> None:
    stubborn = (
        "import os, signal, time\n"
        "for n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n"
        "for folder in ('/tmp', '/dev/shm', '/home/agent'):\n"
        "    os.makedirs(folder + '/a/b/c'); open(folder + '/a/b/left', 'w').write('x')\n"
        "    os.symlink('/', folder + '/a/link')\n"
        "    os.chmod(folder + '/a/b', 0); os.chmod(folder + '/a', 0)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        while True: time.sleep(0.01)\n"
        "    os._exit(0)\n"
        "print('done', flush=True)\n"
    )
    look = (
        "import os; print(os.listdir('/tmp'), os.listdir('/home/agent'), os.listdir('/dev/shm'), "
        "sorted(int(n) for n in os.listdir('/proc') if n.isdigit() and int(n) != os.getpid()))"
    )
    plane.jobs = [python(stubborn), python(look)]
    served(pod)
    assert plane.said(0) == "done\n"
    assert plane.said(1) == "[] [] [] [1]\n"


KEEPING = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
made = [libc.shmget(77, 4096, 0o1600), libc.semget(77, 1, 0o1600), libc.msgget(77, 0o1600)]
ctypes.memmove(libc.shmat(made[0], None, 0), b"the instance", 12)
libc.shmctl(made[0], 1, ctypes.create_string_buffer(200))
for place in ("/tmp", "/home/agent", "/dev/shm"):
    try: os.setxattr(place, "user.kept", b"the instance")
    except OSError: pass
print(min(made) >= 0, any(os.listxattr(p) for p in ("/tmp", "/home/agent", "/dev/shm")))
"""
LOOKING = """
import ctypes, os
libc = ctypes.CDLL(None)
print(libc.shmget(77, 0, 0), libc.semget(77, 0, 0), libc.msgget(77, 0))
print([name for p in ("/tmp", "/home/agent", "/dev/shm") for name in os.listxattr(p)])
"""


def test_no_object_of_the_kernel_tells_the_next_program_of_the_last(
    pod: LoopbackPod, plane: BoxPlane
) -> None:
    plane.jobs = [python(KEEPING), python(LOOKING), python(KEEPING), python(LOOKING)]
    served(pod)
    for number in (0, 2):
        assert plane.said(number) == "True True\n"
        assert plane.said(number + 1) == "-1 -1 -1\n[]\n"


LOCKED_DEEP = """
import os
os.chdir("/tmp")
for _ in range(20):
    os.mkdir("d" * 250)
    os.chdir("d" * 250)
os.mkdir("locked")
open("locked/kept", "w").write("the instance")
os.chmod("locked", 0)
print("done", flush=True)
"""


@pytest.mark.parametrize("role", ["exec"])
def test_what_cannot_be_removed_ends_the_box_and_meets_no_other_program(
    pod: LoopbackPod, plane: BoxPlane
) -> None:
    plane.jobs = [python(LOCKED_DEEP), python("print('the next one')")]
    with pod.running():
        assert pod.wait() == 1
    assert plane.results == []
    assert pod.last_word()["failure"] == "agent_error"


ENDS: dict[str, tuple[str, dict[str, Any], tuple[str, int | None]]] = {
    "exit": ("import sys; sys.exit(3)", {}, ("exit", 3)),
    "signal": ("import os; os.kill(os.getpid(), 11)", {}, ("exit", -11)),
    "time": ("import time; time.sleep(60)", {"timeout_s": 0.5}, ("timeout", None)),
    "memory": ("import time; x = b'x' * (99 << 20); time.sleep(60)", {}, ("memory", None)),
    "output": ("while True: print('x' * 1000)", {}, ("output", None)),
    "threads": (THREADS, {"memory_bytes": 4 << 30}, ("exit", -9)),
    "forks": (FORKS, {"timeout_s": 1.0, "memory_bytes": 4 << 30}, ("timeout", None)),
}


def test_a_program_s_end_has_its_reason_and_the_box_goes_on(
    pod: LoopbackPod, plane: BoxPlane
) -> None:
    for program, changes, _ in ENDS.values():
        plane.jobs += [python(program, **{"memory_bytes": 60 << 20} | changes), python("print(1)")]
    served(pod)
    assert dict(zip(ENDS, plane.ends()[::2], strict=True)) == {
        name: end for name, (_, _, end) in ENDS.items()
    }
    assert plane.ends()[1::2] == [("exit", 0)] * len(ENDS)


def test_a_program_that_cannot_be_started_is_answered_as_lost(
    pod: LoopbackPod, plane: BoxPlane
) -> None:
    plane.jobs = [python("print(1)", workdir="/nowhere"), python("print('the next one')")]
    served(pod)
    assert plane.results[0]["reason"] == "lost"
    assert "did not start" in plane.results[0]["detail"]
    BoxResult.model_validate(plane.results[0])
    assert plane.said(1) == "the next one\n"


UNUSABLE: dict[str, tuple[list[dict[str, str]], str]] = {
    "broken": ([folder("a", "broken")], "archive:"),
    "empty": ([folder("a", "empty")], "archive:"),
    "hostile": ([folder("a", "hostile")], "points out of the archive"),
    "outside": ([{"at": "/elsewhere/a", "key": "good"}], "lies in no volume"),
    "up": ([{"at": "/grader/../etc", "key": "good"}], "not a clean path"),
    "nested": ([folder("a", "good"), folder("a/b", "good")], "lies in another one"),
    "gone": ([folder("a", "gone")], "no_object"),
    "keyless": ([{"at": f"{GRADER}/a"}], "KeyError"),
}


def test_a_program_whose_folders_cannot_be_laid_out_is_answered_as_lost(
    pod: LoopbackPod, plane: BoxPlane
) -> None:
    plane.objects = {
        "good": archive({"plan.csv": b"one"}),
        "broken": b"no archive",
        "empty": b"",
        "hostile": archive({"../plan.csv": b"one"}),
        "gone": refusal(404, "agent", "no_object"),
    }
    plane.jobs = [python("print(1)", folders=folders) for folders, _ in UNUSABLE.values()]
    plane.jobs.append(python("import os; print(os.listdir('/grader'))"))
    served(pod)
    assert plane.said(-1) == "[]\n"
    for (name, (_, said)), told in zip(UNUSABLE.items(), plane.results[:-1], strict=True):
        assert (name, told["reason"]) == (name, "lost")
        assert said in told["detail"], name


def test_no_program_runs_before_the_fence_stands(pod: LoopbackPod, plane: BoxPlane) -> None:
    pod.forbidden = [plane.url.removeprefix("http://")]
    pod.gate["limit_s"] = 0.5
    plane.jobs = [python("print(1)")]
    with pod.running():
        assert pod.wait() == 1
    assert plane.results == []
    assert pod.last_word()["failure"] == "sandbox_start"
    assert "can be reached" in pod.last_word()["detail"]


@ENDS_ITSELF
def test_a_container_that_ends_ends_the_box(
    pod: LoopbackPod, plane: BoxPlane, failure: str
) -> None:
    plane.jobs = [python("import time; time.sleep(60)", timeout_s=60.0)]
    with pod.running():
        until(lambda: any(p.startswith("/v1/job") for _, p, _ in plane.seen), "a program")
        time.sleep(0.3)
        assert pod.runner is not None
        pod.runner.kill()
        assert pod.wait() == 1
    assert plane.results == []
    assert pod.last_word()["failure"] == failure


@ENDS_ITSELF
def test_a_runner_that_hangs_is_killed_and_its_box_is_lost(
    pod: LoopbackPod, plane: BoxPlane, failure: str
) -> None:
    pod.extra = {"late_s": 0.5}
    plane.jobs = [python("import time; time.sleep(60)", timeout_s=2.0)]
    with pod.running():
        until(lambda: any(p.startswith("/v1/job") for _, p, _ in plane.seen), "a program")
        time.sleep(0.5)
        pod.freeze_runner()
        assert pod.wait() == 1
        assert pod.killed_at is not None
    assert plane.results == []
    assert pod.last_word()["failure"] == failure


def test_a_box_whose_word_the_plane_refuses_leaves(pod: LoopbackPod, plane: BoxPlane) -> None:
    """What comes up the line is the plane's to judge; another box has another try."""
    plane.refuses_results = True
    plane.jobs = [python("print(1)")]
    with pod.running():
        assert pod.wait() == 0
    assert plane.results == []


def test_a_box_that_is_told_to_stop_leaves_at_once(pod: LoopbackPod, plane: BoxPlane) -> None:
    plane.goes_on.set()
    with pod.running():
        until(lambda: len(plane.started) == 1, "the start")
        pod.shim.send_signal(signal.SIGTERM)
        assert pod.wait(10.0) == 0
    assert pod.last_word()["phase"] == "stopped"


def test_a_plane_that_is_away_for_a_while_is_waited_for(pod: LoopbackPod, plane: BoxPlane) -> None:
    troubles = [refusal(503, "ours", "store_unavailable")] * 2
    plane.before = lambda method, route, scope: (
        troubles.pop() if troubles and route == "/v1/started" else None
    )
    plane.jobs = [python("print('done')")]
    served(pod)
    assert plane.said() == "done\n"
