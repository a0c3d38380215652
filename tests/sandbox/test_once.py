"""One program in a box: what it sees, and how each of its limits ends it."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from fde_ray.sandbox.local import LocalSandbox
from fde_ray.sandbox.records import Once

pytestmark = pytest.mark.sandbox
MIB = 1 << 20


def python(source: str, **fields: object) -> Once:
    return Once(("/usr/bin/python3", "-I", "-c", source), **fields)  # type: ignore[arg-type]


async def test_output_and_exit_code_come_back(sandbox: LocalSandbox) -> None:
    done = await sandbox.run_once(
        python("import sys; print(1); print(2, file=sys.stderr); sys.exit(3)")
    )
    assert (done.exit_code, done.stdout, done.stderr, done.reason) == (3, b"1\n", b"2\n", "exit")


async def test_mounts_are_read_only_unless_they_are_not(
    sandbox: LocalSandbox, tmp_path: Path
) -> None:
    for name in ("sealed", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "sealed" / "truth").write_text("42")
    source = """
import gc
import os
print(open("/sealed/truth").read())
for path in ("/sealed/x", "/usr/x", "/x", "/etc/x"):
    try:
        open(path, "w")
        print("wrote", path)
    except OSError:
        pass
open("/out/y", "w").write("ok")
"""
    done = await sandbox.run_once(
        python(
            source,
            mounts=((tmp_path / "sealed", "/sealed", True), (tmp_path / "out", "/out", False)),
        )
    )
    assert done.stdout == b"42\n", done
    assert (tmp_path / "out" / "y").read_text() == "ok"


async def test_no_network_no_environment_no_descriptors(
    sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FDE_TEST_KEY", "canary")
    secret = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(secret, True)
    source = """
import os, socket
print(sorted(os.environ))
print([n for _, n in socket.if_nameindex()])
print(sorted(os.listdir("/proc/self/fd")))
print(len([p for p in os.listdir("/proc") if p.isdigit()]), os.getuid())
"""
    try:
        done = await sandbox.run_once(python(source, env={"ONLY": "this"}))
    finally:
        os.close(secret)
    environment, interfaces, descriptors, processes = done.stdout.decode().splitlines()
    assert "FDE_TEST_KEY" not in environment
    assert "'ONLY'" in environment
    assert interfaces == "['lo']"
    assert descriptors == "['0', '1', '2', '3']"
    assert processes == "2 1000"


async def test_program_that_hangs_is_killed_with_all_it_started(sandbox: LocalSandbox) -> None:
    source = "import os, time; os.fork(); os.setsid() if os.fork() == 0 else 0; time.sleep(61.25)"
    began = time.monotonic()
    done = await sandbox.run_once(python(source, timeout_s=0.5))
    assert (done.reason, done.exit_code) == ("timeout", None)
    assert time.monotonic() - began < 10
    assert not runs_anywhere(b"sleep(61.25)")


def runs_anywhere(needle: bytes) -> bool:
    return any(_holds(path, needle) for path in Path("/proc").glob("[0-9]*/cmdline"))


def _holds(path: Path, needle: bytes) -> bool:
    try:
        return needle in path.read_bytes()
    except OSError:
        return False


async def test_endless_output_is_cut_and_the_program_killed(sandbox: LocalSandbox) -> None:
    done = await sandbox.run_once(Once(("yes",), stdout_bytes=1000, timeout_s=20))
    assert (done.reason, len(done.stdout)) == ("output", 1000)


async def test_endless_stderr_is_cut_and_forgiven(sandbox: LocalSandbox) -> None:
    source = "import sys; sys.stderr.write('x' * 500000); print('fine')"
    done = await sandbox.run_once(python(source))
    assert (done.reason, done.stdout, len(done.stderr)) == ("exit", b"fine\n", 256 << 10)


async def test_memory_hog_is_killed_for_memory(sandbox: LocalSandbox) -> None:
    source = "import time; x = [bytearray(b'y') * (1 << 20) for _ in range(400)]; time.sleep(9)"
    done = await sandbox.run_once(python(source, memory_bytes=100 * MIB, timeout_s=20))
    assert (done.reason, done.exit_code) == ("memory", None)


async def test_signal_of_the_program_is_told(sandbox: LocalSandbox) -> None:
    done = await sandbox.run_once(python("import os; os.abort()"))
    assert (done.reason, done.exit_code) == ("exit", -6)


@pytest.mark.parametrize("program", ["exit 3", "exec 0<&-; exit 3", "kill -9 $$"])
async def test_stdin_that_nobody_reads_is_no_trouble(sandbox: LocalSandbox, program: str) -> None:
    troubles: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(context))
    done = await sandbox.run_once(Once(("/bin/sh", "-c", program), stdin=bytes(2 << 20)))
    assert done.exit_code in (3, -9)
    gc.collect()
    await asyncio.sleep(0)
    assert troubles == []


async def test_stdin_is_given(sandbox: LocalSandbox) -> None:
    done = await sandbox.run_once(Once(("cat",), stdin=b"\x00\xff" * 50_000))
    assert done.stdout == b"\x00\xff" * 50_000


async def test_unknown_program_is_an_exit_not_a_crash(sandbox: LocalSandbox) -> None:
    done = await sandbox.run_once(Once(("/no/such/program",)))
    assert done.exit_code != 0
    assert b"no/such/program" in done.stderr


async def test_cancelled_call_leaves_no_process(sandbox: LocalSandbox) -> None:
    task = asyncio.create_task(sandbox.run_once(python("import time; time.sleep(62.5)")))
    await asyncio.sleep(0.3)
    task.cancel()
    outcome = (await asyncio.gather(task, return_exceptions=True))[0]
    assert isinstance(outcome, asyncio.CancelledError)
    await asyncio.sleep(0.2)
    assert not runs_anywhere(b"sleep(62.5)")


async def test_plane_socket_of_the_host_is_not_there(sandbox: LocalSandbox, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        done = await sandbox.run_once(
            python(f"import os; print(os.path.exists({str(tmp_path / 's')!r}))")
        )
    assert done.stdout == b"False\n"
