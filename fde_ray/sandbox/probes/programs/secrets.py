"""Searches for what an agent must not find: the shim's secret and the texts of hidden cases.

Each search first has to find a word of its own, hidden in the same kinds of places; unless it does,
it is broken, not refused.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterator

from .syscalls import Job, call

_FILE_LIMIT = 1 << 20
_TOTAL = 256 << 20
_SPAN_LIMIT, _PROCESS_LIMIT = 4 << 20, 64 << 20
_TRACED = 64 << 10
"""The top of a stack holds the environment."""
_stopped: set[int] = set()
_SKIPPED = ("/proc", "/sys", "/dev", "/usr/lib", "/usr/share/zoneinfo", "/var/lib/dpkg")


def in_environments(job: Job) -> str:
    """Read the environment of every process that is to be seen."""
    own = _own_process(job)
    return _searched(job, _proc_files("environ", "cmdline"), own)


def in_memory(job: Job) -> str:
    """Read the writable memory of every process that lets us."""
    own = _own_process(job)
    return _searched(job, _memories(), own)


def in_files(job: Job) -> str:
    """Read every file that can be read."""
    path = f"/tmp/{job['nonce']}.own"
    with open(path, "w", encoding="ascii") as file:
        file.write(job["own"])
    try:
        return _searched(job, _all_files(job.get("roots", ["/"])), 0)
    finally:
        os.unlink(path)


def in_descriptors(job: Job) -> str:
    """Read whatever the descriptors of every process lead to."""
    path = f"/tmp/{job['nonce']}.descriptor"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.write(descriptor, job["own"].encode())
    os.unlink(path)
    return _searched(job, _descriptors(), 0)


def other_processes(job: Job) -> str:
    """Find a process that is not of this container: the shim, or anything of the host."""
    own = os.readlink("/proc/self/ns/pid")
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace")
            space = os.readlink(f"/proc/{pid}/ns/pid")
        except OSError:
            continue
        if space != own or any(word in words for word in job["words"]):
            found.append(f"{pid} {words[:60]}")
    if str(os.getpid()) not in os.listdir("/proc"):
        raise ValueError("not even this process is to be seen")
    if not found:
        raise PermissionError("no process of anybody else is to be seen")
    return "; ".join(found)


def _searched(job: Job, pieces: Iterator[tuple[str, bytes]], child: int) -> str:
    own, wanted = job["own"].encode(), [word.encode() for word in job["words"]]
    found_own, read, found = "", 0, ""
    try:
        for place, data in pieces:
            read += 1
            if own in data:
                found_own = found_own or place
            hit = next((word for word in wanted if word in data), None)
            if hit is not None and not found:
                found = f"{hit[:6].decode('ascii', 'replace')}… in {place}"
    finally:
        if child:
            os.kill(child, 9)
            os.waitpid(child, 0)
    if found:
        return found
    if not found_own:
        raise ValueError(f"the search did not find its own word in {read} places")
    raise FileNotFoundError(f"not in {read} places; its own word was in {found_own}")


def _own_process(job: Job) -> int:
    """Start a process that bears our own word in its environment and so in its memory."""
    child = os.fork()
    if child == 0:
        environment = {"FDE_PROBE_OWN": job["own"]}
        os.execve("/bin/sleep", ["sleep", "120"], environment)
    for _ in range(200):
        if job["own"].encode() in _read(f"/proc/{child}/environ"):
            return child
        os.sched_yield()
    return child


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_FILE_LIMIT)


def _proc_files(*names: str) -> Iterator[tuple[str, bytes]]:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if pid == str(os.getpid()):
            continue
        for name in names:
            try:
                yield f"/proc/{pid}/{name}", _read(f"/proc/{pid}/{name}")
            except OSError:
                continue


def _memories() -> Iterator[tuple[str, bytes]]:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        # Ours, and that of the harness, hold the words that are searched for.
        if pid in (str(os.getpid()), str(os.getppid())):
            continue
        try:
            with open(f"/proc/{pid}/maps", encoding="ascii", errors="replace") as file:
                spans = [line.split()[:2] for line in file]
        except OSError:
            continue
        for span, mode in spans:
            first, last = (int(word, 16) for word in span.split("-"))
            if not mode.startswith("rw"):
                continue
            for start in range(first, min(last, first + _PROCESS_LIMIT), _SPAN_LIMIT):
                size = min(last - start, _SPAN_LIMIT)
                try:
                    yield f"the memory of {pid}", _peeked(int(pid), start, size)
                except (OSError, ValueError, OverflowError):
                    continue


def _peeked(pid: int, first: int, size: int) -> bytes:
    """Return the memory of another process: by the call for it, its file, or as its tracer."""
    buffer = ctypes.create_string_buffer(size)
    here = struct.pack("PN", ctypes.addressof(buffer), len(buffer))
    there = struct.pack("PN", first, len(buffer))
    try:
        read = call("process_vm_readv", pid, here, 1, there, 1, 0)
        return buffer.raw[:read]
    except OSError:
        pass
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            memory.seek(first)
            return memory.read(len(buffer)) or b""
    except OSError:
        return _traced(pid, first + max(size - _TRACED, 0), min(size, _TRACED))


def _traced(pid: int, first: int, size: int) -> bytes:
    """Return memory word by word, as a debugger does; the process stays stopped."""
    word = ctypes.c_long()
    if pid not in _stopped:
        call("ptrace", 16, pid, 0, 0)
        os.waitpid(pid, 0x40000000)
        _stopped.add(pid)
    found = bytearray()
    for offset in range(0, size, 8):
        call("ptrace", 1, pid, first + offset, ctypes.byref(word))
        found += struct.pack("q", word.value)
    return bytes(found)


def _descriptors() -> Iterator[tuple[str, bytes]]:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for number in numbers:
            path = f"/proc/{pid}/fd/{number}"
            try:
                if stat.S_ISREG(os.stat(path).st_mode):
                    yield path, _read(path)
            except OSError:
                continue


def _all_files(roots: list[str]) -> Iterator[tuple[str, bytes]]:
    total = 0
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders[:] = [f for f in folders if os.path.join(folder, f) not in _SKIPPED]
            for name in names:
                path = os.path.join(folder, name)
                try:
                    if not stat.S_ISREG(os.lstat(path).st_mode):
                        continue
                    data = _read(path)
                except OSError:
                    continue
                total += len(data)
                if total > _TOTAL:
                    raise ValueError(f"more than {_TOTAL} bytes are to be read")
                yield path, data
