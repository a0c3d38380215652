"""Ways into the kernel of the host. None of them harms it, should it be let in."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import time

from .syscalls import IS_ARM, Job, call

_LOG_BYTES = 8192
_LINES, _LINE_CHARS = 3, 90


def load_module(_: Job) -> str:
    """Offer the kernel a module that is none: EPERM says no, ENOEXEC would say: I looked at it."""
    buffer = ctypes.create_string_buffer(b"no module", 64)
    try:
        call("init_module", buffer, 64, b"")
    except OSError as error:
        if error.errno in (errno.ENOEXEC, errno.EINVAL):
            return f"the kernel read the module: {error}"
        raise
    return "a module was loaded"


def load_module_file(_: Job) -> str:
    path = "/tmp/module"
    with open(path, "wb") as file:
        file.write(b"no module" * 9)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        call("finit_module", descriptor, b"", 0)
    except OSError as error:
        if error.errno in (errno.ENOEXEC, errno.EINVAL):
            return f"the kernel read the module: {error}"
        raise
    return "a module was loaded"


def bpf_map(_: Job) -> str:
    """Make an array of one entry in the kernel."""
    attributes = ctypes.create_string_buffer(struct.pack("IIIII", 2, 4, 4, 1, 0) + bytes(100))
    os.close(call("bpf", 0, attributes, 72))
    return "a map was made in the kernel"


def bpf_program(_: Job) -> str:
    """Load the program that returns 0."""
    code = ctypes.create_string_buffer(struct.pack("<QQ", 0xB7, 0x95))
    text = ctypes.create_string_buffer(b"GPL")
    attributes = ctypes.create_string_buffer(
        struct.pack("IIQQ", 1, 2, ctypes.addressof(code), ctypes.addressof(text)) + bytes(100)
    )
    os.close(call("bpf", 5, attributes, 72))
    return "a program was loaded into the kernel"


def perf_counter(job: Job) -> str:
    """Count context switches: of this process, or of the whole machine (`everyone`)."""
    attributes = ctypes.create_string_buffer(struct.pack("IIQ", 1, 112, 3) + bytes(112))
    who, processor = (-1, 0) if job.get("everyone") else (0, -1)
    os.close(call("perf_event_open", attributes, who, processor, -1, 0))
    return "a counter of the kernel runs"


def add_key(_: Job) -> str:
    """Put a key where keys of other containers lie, too."""
    number = call("add_key", b"user", b"fde-ray-probe", b"x", 1, -3)
    return f"key {number} is in the kernel's ring"


def kexec(_: Job) -> str:
    call("kexec_load", 0, 0, None, 0)
    return "the kernel that is started next may be replaced"


def io_ring(_: Job) -> str:
    os.close(call("io_uring_setup", 1, ctypes.create_string_buffer(120)))
    return "a ring of system calls was made"


def fault_handler(_: Job) -> str:
    """Handle page faults of the kernel, which makes many of its races winnable."""
    os.close(call("userfaultfd", 0))
    return "page faults of the kernel can be held"


def io_ports(_: Job) -> str:
    if IS_ARM:
        raise PermissionError("there are none on this processor")
    call("iopl", 3)
    return "ports of the machine are open"


def kernel_log(_: Job) -> str:
    """Return the beginnings of the last lines, of which one may fill a screen; the first is cut."""
    buffer = ctypes.create_string_buffer(_LOG_BYTES)
    size = call("syslog", 3, buffer, _LOG_BYTES)
    lines = buffer.raw[:size].decode("ascii", "replace").splitlines()[1:]
    return " | ".join(line[:_LINE_CHARS] for line in lines[-_LINES:])


def kernel_addresses(_: Job) -> str:
    with open("/proc/kallsyms", encoding="ascii", errors="replace") as file:
        shown = sum(int(line.split()[0], 16) > 0 for line, _ in zip(file, range(200), strict=False))
    if not shown:
        raise PermissionError("every address is shown as 0")
    return f"{shown} addresses of the kernel"


def reboot(_: Job) -> str:
    """Ask for what a kernel refuses to everybody that may not ask: an unknown command."""
    try:
        call("reboot", 0xFEE1DEAD, 672274793, 0x0BADF00D, None)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return "it may reboot the machine"
        raise
    return "it rebooted the machine"


def swap(_: Job) -> str:
    path = "/tmp/swap"
    with open(path, "wb") as file:
        file.write(bytes(8192))
    try:
        call("swapon", path.encode(), 0)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return "it may add swap"
        raise
    return "swap was added"


def account(_: Job) -> str:
    """Have the kernel write a line of every process of the machine."""
    call("acct", b"/tmp/account")
    return "the kernel writes down every process"


def host_name(job: Job) -> str:
    socket.sethostname(job["nonce"])
    return "the host has another name"


def set_time(_: Job) -> str:
    """Set the clock of the machine to the time that it is."""
    seconds, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    call("clock_settime", 0, ctypes.create_string_buffer(struct.pack("qq", seconds, nanoseconds)))
    return "the machine's clock was set"


def add_route(_: Job) -> str:
    """Add a route to a documentation range over loopback."""
    index = socket.if_nametoindex("lo")
    body = struct.pack("=BBBBBBBBI", socket.AF_INET, 32, 0, 0, 254, 4, 253, 1, 0)
    body += struct.pack("=HH4sHHI", 8, 1, socket.inet_aton("203.0.113.9"), 8, 4, index)
    head = struct.pack("=IHHII", 16 + len(body), 24, 0x1 | 0x4 | 0x400, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.settimeout(2)
        sock.sendto(head + body, (0, 0))
        answer = sock.recv(4096)
    (code,) = struct.unpack_from("=i", answer, 16)
    if code:
        raise OSError(-code, os.strerror(-code))
    return "a route was added"
