"""System calls by number, and what the programs around them share."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import Any

Job = dict[str, Any]
LIBC = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUSER, NEWNET, NEWPID = 0x00020000, 0x10000000, 0x40000000, 0x20000000
HELD_S = 2.0
"""How long a thing stays that an observer may look for."""
IS_ARM = platform.machine() == "aarch64"
_CALLS = {  # name: (x86_64, aarch64)
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "clock_settime": (227, 112),
    "finit_module": (313, 273),
    "fsopen": (430, 430),
    "init_module": (175, 105),
    "io_uring_setup": (425, 425),
    "iopl": (172, -1),
    "kexec_load": (246, 104),
    "mount": (165, 40),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "reboot": (169, 142),
    "setns": (308, 268),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}


def call(name: str, *arguments: Any) -> int:
    """Make a system call; OSError as it fails."""
    number = _CALLS[name][IS_ARM]
    result = int(LIBC.syscall(ctypes.c_long(number), *map(_word, arguments)))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result


def _word(value: Any) -> Any:
    return ctypes.c_long(value) if isinstance(value, int) else value


def named(job: Job) -> None:
    """Bear the nonce as a name, so that an observer on the node could find this process."""
    LIBC.prctl(15, job["nonce"].encode()[:15], 0, 0, 0)


def own_folder(job: Job) -> str:
    """Return a folder of one's own."""
    path = f"/tmp/{job['nonce']}-{job['id']}"
    os.makedirs(path, exist_ok=True)
    return path
