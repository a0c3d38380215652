"""Ways to files, mounts, sockets and devices that are the host's."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import stat
import struct
import time

from .syscalls import HELD_S, LIBC, NEWNET, NEWNS, NEWUSER, Job, call, named, own_folder


def foreign_mounts(_: Job) -> str:
    """Find a mount that a run pod has no business with."""
    expected = ("/proc", "/sys", "/dev", "/workspace", "/tmp", "/home/agent", "/data", "/inputs")
    files = ("/", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf")
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        places = [line.split()[4] for line in file]
    if "/" not in places:
        raise ValueError("no mount is listed, not even the root")
    odd = [
        place
        for place in places
        if place not in files and not any(_is_below(place, each) for each in expected)
    ]
    if not odd:
        raise FileNotFoundError(f"{len(places)} mounts, all of them the pod's own")
    return f"mounted: {', '.join(odd)[:200]}"


def _is_below(place: str, folder: str) -> bool:
    return place == folder or place.startswith(folder + "/")


def open_any(job: Job) -> str:
    """Open one of `paths` for reading (`write`: for writing), whichever is there."""
    flags = os.O_WRONLY if job.get("write") else os.O_RDONLY
    refusals = []
    for path in job["paths"]:
        try:
            descriptor = os.open(path, flags | os.O_NONBLOCK)
        except OSError as error:
            refusals.append(f"{path} {errno.errorcode.get(error.errno or 0, error.errno)}")
            continue
        os.close(descriptor)
        return f"{path} is open"
    raise PermissionError(", ".join(refusals)[:280])


def write_any(job: Job) -> str:
    """Make a file in one of `folders`, which belong to others."""
    refusals = []
    for folder in job["folders"]:
        path = f"{folder}/{job['nonce']}"
        try:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600))
        except OSError as error:
            refusals.append(f"{folder} {errno.errorcode.get(error.errno or 0, error.errno)}")
            continue
        os.unlink(path)
        return f"{path} was written"
    raise PermissionError(", ".join(refusals)[:280])


def connect_any(job: Job) -> str:
    """Connect to a socket of the container runtime, by path or by abstract name."""
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        names = [line.split()[-1] for line in file if "@" in line]
    for name in [*job["paths"], *("\0" + name[1:] for name in names)]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(1)
            try:
                sock.connect(name)
            except OSError:
                continue
            return f"connected to {name!r}"
    raise ConnectionRefusedError("no socket of the host is to be found")


def own_root(job: Job) -> str:
    """Look for a root other than one's own behind the links of /proc."""
    own = os.stat("/")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for link in ("root", "cwd"):
            try:
                path = f"/proc/{pid}/{link}"
                found = os.stat(path)
            except OSError:
                continue
            if link == "root" and (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino):
                return f"{path} is another root"
    raise PermissionError("every root below /proc is the own one")


def by_handle(_: Job) -> str:
    """Open a file by its handle, which passes by every mount."""
    name = b"/workspace/handle"
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600))
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    place = ctypes.c_int()
    if LIBC.name_to_handle_at(-100, name, handle, ctypes.byref(place), 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "name_to_handle_at")
    folder = os.open("/workspace", os.O_RDONLY)
    os.close(call("open_by_handle_at", folder, handle, os.O_RDONLY))
    return "a file was opened by its handle"


def mount_fuse(job: Job) -> str:
    """Open the device by which programs are file systems, and mount one."""
    device = os.open("/dev/fuse", os.O_RDWR)
    folder = own_folder(job)
    named(job)
    if os.getuid():
        call("unshare", NEWUSER | NEWNS)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    call("mount", job["nonce"].encode(), folder.encode(), b"fuse", 0, options)
    time.sleep(HELD_S)
    return "a file system of its own was mounted"


def make_link(job: Job) -> str:
    """Make a link of the network that is a program."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    if os.getuid():
        call("unshare", NEWUSER | NEWNET)
    request = struct.pack("16sH22x", job["nonce"].encode(), 0x1 | 0x1000)
    fcntl.ioctl(device, 0x400454CA, request)
    time.sleep(HELD_S)
    return "a link of its own was made"


def make_device(job: Job) -> str:
    """Make the null device again, in a folder of one's own, and open it."""
    path = f"/workspace/{job['nonce']}"
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    try:
        os.close(os.open(path, os.O_RDONLY))
    finally:
        os.unlink(path)
    return "a device was made and opened"


def vsock(_: Job) -> str:
    """Talk to the hypervisor's host."""
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as sock:
        sock.settimeout(2)
        sock.connect((2, 1024))
    return "connected to the host of the machine"
