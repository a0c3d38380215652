"""The two containers of a pod on this machine's loopback, with this test in the kubelet's part.

The shim is a plain process; the runner is PID 1 of a bubblewrap box that shares the network.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from fde_ray.shim.boxes import PYZ_AT, Bind, Box, Runtime, bubblewrap_argv
from fde_ray.shim.pod_site import VARIABLE
from fde_ray.shim.wire import Exchange, Unreachable
from tests.sandbox.fake_plane import SECRET, FakePlane, _Handler

HEALTH_PATH = "/probe-canary-0123456789"
QUIET_S = 0.4
PROBE_S = 0.05


class TcpPlane(FakePlane):
    """The stand-in for the plane at an address that pods can reach."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", **inputs: Any) -> None:
        super().__init__(folder, **inputs)
        self.host = host
        self.started: list[dict[str, Any]] = []

    def open(self) -> None:
        self._tcp = _TcpServer((self.host, 0), self)
        threading.Thread(
            target=self._tcp.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def close(self) -> None:
        self._tcp.shutdown()
        self._tcp.server_close()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self._tcp.server_address[1]}"

    def _answer_json(self, route: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
        if route == "/v1/started":
            self.started.append(body)
        return super()._answer_json(route, body, headers)


class _TcpServer(ThreadingMixIn, TCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], plane: FakePlane) -> None:
        self.plane = plane
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


def free_ports(count: int) -> list[int]:
    """Return ports that nobody has now, outside of what the kernel hands out by itself."""
    found: list[int] = []
    first = 11_000 + 20 * (os.getpid() % 1000)  # another session of tests looks elsewhere
    for port in range(first, first + 500):
        if all(_is_free(family, port) for family in (socket.AF_INET, socket.AF_INET6)):
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError("no free ports")


def _is_free(family: int, port: int) -> bool:
    """Whether every address of the family has the port free; True = there is no such family."""
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return True
    with sock:
        try:
            sock.bind(("", port))
        except OSError:
            return False
    return True


class LoopbackPod:
    """kills: False = a kubelet that has gone to sleep."""

    def __init__(self, folder: Path, pyz: Path, plane: TcpPlane, *mounts: str) -> None:
        self.folder, self.pyz, self.plane = folder, pyz, plane
        self.health, self.control, self.relay = free_ports(3)
        self.mounts = {at: folder / f"m{number}" for number, at in enumerate(mounts)}
        self.read_only: set[str] = set()
        self.forbidden = [f"127.0.0.1:{free_ports(4)[3]}"]
        self.gate: dict[str, Any] = {"rounds": 3, "over_s": 0.2, "limit_s": 5.0, "every_s": 600.0}
        self.death_limit_s = 10.0
        self.extra: dict[str, Any] = {}
        """Further keys of the pod's block."""
        self.kills = True
        self.answers: list[int] = []
        self.killed_at: float | None = None
        self.shim: subprocess.Popen[bytes]
        self.runner: subprocess.Popen[bytes] | None = None

    def config(self) -> dict[str, Any]:
        mounts = [
            {"dir": str(path), "at": at, "read_only": at in self.read_only}
            for at, path in self.mounts.items()
        ]
        return {
            "format": 1,
            "subject": self.plane.inputs["subject"],
            "role": self.plane.inputs["role"],
            "plane": self.plane.url,
            "secret": SECRET,
            "dir": str(self.folder / "own"),
            "give_up_s": 20.0,
            "pod": {
                "health_port": self.health,
                "health_path": HEALTH_PATH,
                "control_port": self.control,
                "relay_port": self.relay,
                "mounts": mounts,
                "gate": {"forbidden": self.forbidden, **self.gate},
                "quiet_s": QUIET_S,
                "death_limit_s": self.death_limit_s,
                "termination_log": str(self.folder / "termination"),
                **self.extra,
            },
        }

    @contextmanager
    def running(self) -> Iterator[LoopbackPod]:
        (self.folder / "own").mkdir(mode=0o700)
        (self.folder / "termination").touch()
        for path in self.mounts.values():
            path.mkdir()
        self.start_shim()
        self.start_runner()
        kubelet = threading.Thread(target=self._kubelet)
        kubelet.start()
        try:
            yield self
        finally:
            for process in (self.shim, self.runner):
                if process is not None and process.poll() is None:
                    process.kill()
                    process.wait()
            kubelet.join()

    def start_shim(self) -> None:
        with open(self.folder / "shim.log", "ab") as log:
            self.shim = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", self.pyz, "shim", "--pod"],
                env={VARIABLE: json.dumps(self.config()), "PATH": "/usr/bin:/bin"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def start_runner(self) -> None:
        evaluate = self.folder / "bin"
        evaluate.mkdir()
        from fde_ray.sandbox.packing import image_files

        (evaluate / "evaluate").write_bytes(image_files()["evaluate"])
        (evaluate / "evaluate").chmod(0o755)
        box = Box(
            argv=(
                *("/usr/bin/python3", "-I", "-S", "-B", PYZ_AT, "runner", "--pod"),
                *("--control", f"127.0.0.1:{self.control}"),
                *("--relay", f"http://127.0.0.1:{self.relay}"),
            ),
            binds=(
                Bind(str(self.pyz), PYZ_AT),
                Bind(str(evaluate), "/opt/fde/bin"),
                *(Bind(str(p), at, at in self.read_only) for at, p in self.mounts.items()),
            ),
            env={"KUBERNETES_SERVICE_HOST": "10.96.0.1"},
            workdir="/",
            is_pid_1=True,
        )
        argv = bubblewrap_argv(Runtime("bubblewrap", "bwrap"), box)
        argv.remove("--unshare-all")
        with open(self.folder / "runner.log", "ab") as log:
            self.runner = subprocess.Popen(
                [argv[0], "--unshare-pid", "--unshare-ipc", "--unshare-uts", *argv[1:]],
                env={"PATH": "/usr/bin:/bin"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _kubelet(self) -> None:
        """Ask while the agent's container lives; kill it after two refusals in a row."""
        assert self.runner is not None
        refusals = 0
        while self.runner.poll() is None:
            status = probe(self.health)
            if status is not None:
                self.answers.append(status)
            refusals = refusals + 1 if status == 503 else 0
            if refusals >= 2 and self.kills:
                self.killed_at = self.killed_at or time.monotonic()
                self.runner.kill()
            time.sleep(PROBE_S)

    def runner_pid(self) -> int:
        """Return the runner's pid as this machine has it."""
        assert self.runner is not None
        with open(f"/proc/{self.runner.pid}/task/{self.runner.pid}/children") as file:
            return int(file.read().split()[0])

    def freeze_runner(self) -> None:
        os.kill(self.runner_pid(), signal.SIGSTOP)

    def wait(self, timeout_s: float = 30.0) -> int:
        """Return the shim's exit code."""
        return self.shim.wait(timeout_s)

    def last_word(self) -> dict[str, Any]:
        text = (self.folder / "termination").read_text()
        value: dict[str, Any] = json.loads(text)
        return value

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = (self.folder / "own" / "events.jsonl").read_text().splitlines()
        return [event for line in lines if (event := json.loads(line))["event"] == name]


def probe(port: int, path: str = HEALTH_PATH) -> int | None:
    try:
        with Exchange(f"http://127.0.0.1:{port}", "GET", path, timeout=2.0) as reply:
            return reply.status
    except Unreachable:
        return None


def until(holds: Callable[[], bool], what: str, within_s: float = 20.0) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, f"waited {within_s} s for {what}"
        time.sleep(0.01)
