"""Traps for the collector and the graders, each in a folder of its own below the workspace."""

from __future__ import annotations

import os
import socket
import stat
import time

from .syscalls import Job

_SWAPS_S = 120.0


def _place(job: Job) -> str:
    path = f"/workspace/{job['id']}"
    os.makedirs(path, exist_ok=True)
    with open(f"{path}/plain.txt", "w", encoding="ascii") as file:
        file.write(f"harmless {job['nonce']}\n")
    os.chdir(path)
    return path


def links(job: Job) -> str:
    """Point out of the workspace, at what the collector could read and its agent could not."""
    _place(job)
    for number, target in enumerate(job["targets"]):
        os.symlink(target, f"link-{number}")
    os.symlink(".", "loop")
    os.symlink("nowhere", "dangling")
    return f"{len(job['targets']) + 2} links"


def folder_link(job: Job) -> str:
    """Let a folder be a link to one of the collector's own."""
    _place(job)
    for number, target in enumerate(job["targets"]):
        os.symlink(target, f"folder-{number}", target_is_directory=True)
    return f"{len(job['targets'])} folders that are links"


def hard_links(job: Job) -> str:
    """Have one large file under a thousand names."""
    _place(job)
    with open("large", "wb") as file:
        file.write(bytes(64 << 10))
    for number in range(200):
        os.link("large", f"name-{number}")
    return "one file with 201 names"


def special_files(job: Job) -> str:
    """Leave what blocks or harms its reader; the kinds that are refused are left out."""
    _place(job)
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("door")
    made = ["pipe", "socket"]
    for name, kind, device in (("null", stat.S_IFCHR, (1, 3)), ("disk", stat.S_IFBLK, (8, 0))):
        try:
            os.mknod(name, 0o666 | kind, os.makedev(*device))
            made.append(name)
        except OSError:
            continue
    return ", ".join(made)


def odd_names(job: Job) -> str:
    """Use every byte that a name may hold, and names that mean something to somebody."""
    _place(job)
    names = [
        *(bytes([byte]) for byte in range(1, 256) if byte not in b"/."),
        *(
            b"\xff\xfe.csv",
            b"new\nline",
            b"tab\t\x1b[31m",
            b"-rf",
            b" ",
            b"~",
            b"CON",
            b"%2e%2e%2f",
        ),
        *(b"\xe2\x80\xaetxt.exe", b"a" * 255, b"..\\..\\x", b"\xed\xa0\x80", b"...", b".. ", b". "),
    ]
    taken = 0
    for name in names:
        try:
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
            taken += 1
        except OSError:
            continue
    if taken < 100:
        raise ValueError(f"only {taken} names were taken")
    return f"{taken} names"


def escapes(job: Job) -> str:
    """Lay out names that an archive might resolve to somewhere else."""
    place = _place(job)
    made = 0
    for name in (
        "..%2f..%2fetc",
        "..\\..\\etc",
        "~root",
        "$HOME",
        "`id`",
        "C:\\x",
        "||id",
        "a\\..\\b",
    ):
        os.mkdir(name)
        with open(f"{name}/passwd", "w", encoding="ascii") as file:
            file.write("planted\n")
        made += 1
    os.chdir(place)
    return f"{made} folders whose names look like ways out"


def deep(job: Job) -> str:
    """Nest deeper than any path may be long."""
    _place(job)
    for _ in range(200):
        os.mkdir("d" * 20)
        os.chdir("d" * 20)
    with open("bottom", "w", encoding="ascii") as file:
        file.write("x")
    return "200 folders in each other"


def closed(job: Job) -> str:
    """Forbid the collector to look, and set every bit that an archive might carry on."""
    _place(job)
    os.mkdir("locked")
    for name, mode in (("locked/inside", 0), ("unreadable", 0), ("suid", 0o6777)):
        with open(name, "w", encoding="ascii") as file:
            file.write("x")
        os.chmod(name, mode)
    os.chmod("locked", 0)
    return "a locked folder, an unreadable file, a set-uid file"


def swaps(job: Job) -> str:
    """Keep swapping a folder for a link while somebody walks it."""
    place = _place(job)
    os.mkdir("inner")
    for number in range(50):
        with open(f"inner/{number}", "w", encoding="ascii") as file:
            file.write("x")
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _swap_on(place, job["targets"][0])
        os._exit(0)
    return "a folder is swapped for a link all the time"


def _swap_on(place: str, target: str) -> None:
    os.chdir(place)
    give_up = time.monotonic() + _SWAPS_S
    while time.monotonic() < give_up:
        os.rename("inner", "aside")
        os.symlink(target, "inner")
        time.sleep(0.002)
        os.unlink("inner")
        os.rename("aside", "inner")
        time.sleep(0.002)


def sparse(job: Job) -> str:
    """Have a file of `amount` bytes that takes no room."""
    _place(job)
    with open("huge", "wb") as file:
        os.truncate(file.fileno(), job["amount"])
    return f"a file of {job['amount']} bytes without any"


def many(job: Job) -> str:
    """Make `amount` empty files."""
    _place(job)
    for number in range(job["amount"]):
        if number % 5000 == 0:
            folder = f"f{number // 5000}"
            os.mkdir(folder)
        os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_WRONLY))
    return f"{job['amount']} files"


# --- for the graders


def startup_files(job: Job) -> str:
    """Plant what a Python, a shell or a git of the graders would run unasked."""
    _place(job)
    text = "open('/tmp/fde-ray-planted', 'w')\n"
    names = [
        "sitecustomize.py",
        "usercustomize.py",
        "json.py",
        "evil.pth",
        ".bashrc",
        "conftest.py",
    ]
    for name in [*names, ".git/hooks/post-checkout", "numpy/__init__.py", "evaluate"]:
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "w", encoding="ascii") as file:
            file.write(text)
        os.chmod(name, 0o6777)
    return f"{len(names) + 3} files that somebody might run"


def verdict_files(job: Job) -> str:
    """Plant verdicts and reports under the names that graders write themselves."""
    _place(job)
    for name in ("_result.json", "result.json", "_agent_summary.md", "evaluation.json"):
        with open(name, "w", encoding="ascii") as file:
            file.write('{"score": 1.0, "valid": true, "status": "success"}\n')
    return "four files that claim a score"
