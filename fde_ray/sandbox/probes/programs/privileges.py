"""Ways to more rights: users, capabilities, namespaces and what can be mounted in them."""

from __future__ import annotations

import os
import time

from .syscalls import HELD_S, LIBC, NEWNET, NEWNS, NEWPID, NEWUSER, Job, call, named, own_folder


def set_uid(_: Job) -> str:
    os.setresuid(0, 0, 0)
    return "it is root now"


def new_privileges(_: Job) -> str:
    """Hope that a set-uid program would still gain something."""
    if LIBC.prctl(39, 0, 0, 0, 0) == 1:
        raise PermissionError("no new privileges, whatever is executed")
    return "a set-uid program would gain its owner's rights"


def capabilities(_: Job) -> str:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        sets = dict(line.rstrip().split(":\t") for line in file if line.startswith("Cap"))
    if not {"CapPrm", "CapEff", "CapBnd"} <= set(sets):
        raise ValueError(f"only {sorted(sets)} are told")
    if not any(int(value, 16) for value in sets.values()):
        raise PermissionError("every set of capabilities is empty")
    return f"capabilities: {sets}"


def no_filter(_: Job) -> str:
    """Hope that no filter of system calls is in force."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        status = dict(line.rstrip().split(":\t", 1) for line in file)
    if status.get("Seccomp") == "2":
        raise PermissionError("system calls are filtered")
    return f"Seccomp: {status.get('Seccomp')}"


def user_namespace(job: Job) -> str:
    named(job)
    call("unshare", NEWUSER)
    time.sleep(HELD_S)
    return "a user namespace was made"


def all_namespaces(job: Job) -> str:
    named(job)
    call("unshare", NEWUSER | NEWNS | NEWNET | NEWPID)
    time.sleep(HELD_S)
    return "user, mount, network and process namespaces were made"


def join_namespace(_: Job) -> str:
    """Join the namespaces of a process that is not in one's own."""
    own = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in ("mnt", "pid", "net", "user")}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for kind, mine in own.items():
            try:
                path = f"/proc/{pid}/ns/{kind}"
                if os.readlink(path) == mine and kind != "mnt":
                    continue
                descriptor = os.open(path, os.O_RDONLY)
                call("setns", descriptor, 0)
            except OSError:
                continue
            return f"joined {path}"
    raise PermissionError("no namespace can be joined")


def _mount(source: str, place: str, kind: str) -> None:
    call("mount", source.encode(), place.encode(), kind.encode(), 0, None)


def mount_tmpfs(job: Job) -> str:
    named(job)
    _mount(job["nonce"], own_folder(job), "tmpfs")
    time.sleep(HELD_S)
    return "a file system was mounted"


def mount_in_user_namespace(job: Job) -> str:
    named(job)
    call("unshare", NEWUSER | NEWNS)
    _mount(job["nonce"], own_folder(job), "tmpfs")
    time.sleep(HELD_S)
    return "a file system was mounted in a namespace of one's own"


def new_mount_api(job: Job) -> str:
    """Open a file system by the newer calls, which older filters do not know."""
    os.close(call("fsopen", b"tmpfs", 0))
    return "a file system was opened"


def clone_mount(_: Job) -> str:
    os.close(call("open_tree", -100, b"/", 1))
    return "the mount of the root was cloned"


def mount_cgroup(job: Job) -> str:
    """Mount the control groups and look for the way out that `release_agent` is."""
    call("unshare", NEWUSER | NEWNS)
    folder = own_folder(job)
    _mount(job["nonce"], folder, "cgroup")
    return f"control groups are mounted: {', '.join(os.listdir(folder))[:100]}"


def swap_root(job: Job) -> str:
    folder = own_folder(job)
    call("unshare", NEWNS)
    _mount(job["nonce"], folder, "tmpfs")
    os.mkdir(f"{folder}/old")
    call("pivot_root", folder.encode(), f"{folder}/old".encode())
    return "the root was swapped"


def change_root(job: Job) -> str:
    """Leave a root by the descriptor of a folder outside it."""
    own, outer = os.stat("/"), os.open("/", os.O_RDONLY)
    call("unshare", NEWUSER)
    os.chroot(own_folder(job))
    inner = os.stat("/")
    os.fchdir(outer)
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
    found = os.stat("/")
    if any(os.path.samestat(found, root) for root in (own, inner)):
        raise PermissionError("it came out in a root that it had before")
    if not os.listdir("/"):
        raise PermissionError("it came out in an empty root, where nothing is")
    return f"it came out in another root, with {os.listdir('/')[:5]}"
