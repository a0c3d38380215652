"""What a sandbox looks like from inside, and how each runtime is asked for it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import Any

HOME = "/home/agent"
PYZ_AT = "/opt/fde/fde-shim.pyz"
BIN_AT = "/opt/fde/bin"
ENV_AT = "/opt/agent-env"
ENV_PYTHON = f"{ENV_AT}/bin/python"
RUN_AT = "/run/fde"
UID = 1000
HOSTNAME = "sandbox"
PATH = f"{BIN_AT}:{ENV_AT}/bin:/usr/local/bin:/usr/bin:/bin"
_USR_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_PROC_LOCKED = ("sys", "fs", "irq", "bus", "pressure")
_PROC_HIDDEN = (
    *("acpi", "asound", "scsi", "driver", "kcore", "keys", "key-users", "kmsg", "latency_stats"),
    *("mtrr", "sched_debug", "sysrq-trigger", "timer_list", "timer_stats", "vmallocinfo"),
)
_ETC_BINDS = ("/etc/alternatives", "/etc/ld.so.cache")


@dataclass(frozen=True)
class Bind:
    source: str
    at: str
    read_only: bool = True


@dataclass(frozen=True)
class Runtime:
    """A sandbox program that was seen to work, and what every box of this machine shares."""

    name: str
    """bubblewrap, gvisor or none."""
    program: str = ""
    etc: str = ""
    """Folder whose files appear in /etc."""
    python: str = "/usr/bin/python3"
    """The interpreter, as seen inside."""
    agent_env: str = ""
    shared: tuple[str, ...] = ()
    """Further host folders, shown read-only at their own path (the home of the interpreter)."""
    hidden: tuple[str, ...] = ()
    """Host folders below those shown that must look empty."""
    flags: tuple[str, ...] = ()
    """Arguments that this version of the program knows."""

    @classmethod
    def of(cls, value: dict[str, Any]) -> Runtime:
        lists: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in value.items()
        }
        return cls(**lists)

    def jsonable(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Box:
    argv: tuple[str, ...]
    binds: tuple[Bind, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = HOME
    is_pid_1: bool = False
    """True for a program that reaps; others get bubblewrap's own first process above them, since
    the kernel keeps many signals from PID 1."""
    scratch_bytes: int = 256 << 20
    """Size of /tmp, of the home folder and of /dev/shm, each."""


def base_env() -> dict[str, str]:
    return {
        "PATH": PATH,
        "HOME": HOME,
        "USER": "agent",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",  # noqa: S108  (a tmpfs of the sandbox)
        "TMUX_TMPDIR": "/tmp",  # noqa: S108
        "VIRTUAL_ENV": ENV_AT,
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def shared_binds(runtime: Runtime) -> list[Bind]:
    """Return what every box shows read-only, in mount order."""
    binds = [Bind("/usr", "/usr")]
    binds += [Bind(path, path) for path in _ETC_BINDS if os.path.exists(path)]
    if runtime.etc:
        binds += [
            Bind(os.path.join(runtime.etc, name), f"/etc/{name}")
            for name in sorted(os.listdir(runtime.etc))
        ]
    if runtime.agent_env:
        binds.append(Bind(runtime.agent_env, ENV_AT))
    return binds + [Bind(path, path) for path in runtime.shared]


def usr_links() -> list[tuple[str, str]]:
    """Return (target, link) for /bin, /lib and the like, on a host with a merged /usr."""
    return [
        (f"usr/{name}", f"/{name}")
        for name in _USR_LINKS
        if os.path.islink(f"/{name}") and os.path.isdir(f"/usr/{name}")
    ]


def split_usr() -> list[Bind]:
    """Return binds of /bin, /lib and the like, on a host where they are real folders."""
    return [
        Bind(f"/{name}", f"/{name}")
        for name in _USR_LINKS
        if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")
    ]


def hidden_inside(runtime: Runtime, binds: list[Bind]) -> list[str]:
    """Return where folders to be hidden would show up inside."""
    found = []
    for path in runtime.hidden:
        for bind in binds:
            if path == bind.source or path.startswith(bind.source.rstrip("/") + "/"):
                found.append(bind.at + path[len(bind.source.rstrip("/")) :])
    return found


def bubblewrap_argv(runtime: Runtime, box: Box) -> list[str]:
    binds = shared_binds(runtime) + split_usr()
    argv = [runtime.program, "--unshare-all", "--unshare-user", "--die-with-parent"]
    argv += ["--new-session", *(["--as-pid-1"] if box.is_pid_1 else []), *runtime.flags]
    argv += ["--uid", str(UID), "--gid", str(UID), "--hostname", HOSTNAME, "--clearenv"]
    for name, value in {**base_env(), **box.env}.items():
        argv += ["--setenv", name, value]
    argv += ["--proc", "/proc", *_guarded_proc(), "--dev", "/dev"]
    for bind in binds:
        argv += ["--ro-bind", bind.source, bind.at]
    for target, link in usr_links():
        argv += ["--symlink", target, link]
    for path in hidden_inside(runtime, binds):
        argv += ["--tmpfs", path, "--remount-ro", path]
    for path in ("/tmp", HOME, "/dev/shm"):  # noqa: S108
        argv += ["--size", str(box.scratch_bytes), "--tmpfs", path]
    for bind in box.binds:
        argv += ["--ro-bind" if bind.read_only else "--bind", bind.source, bind.at]
    argv += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", box.workdir]
    return [*argv, "--", *box.argv]


def _guarded_proc() -> list[str]:
    """Return arguments that lock what is not of a namespace in /proc.

    When root starts a box, its processes are uid 0 to the host's kernel, which lets that uid write
    many of these files without any capability.
    """
    argv: list[str] = []
    for name in _PROC_LOCKED:
        if os.path.isdir(f"/proc/{name}"):
            argv += ["--ro-bind", f"/proc/{name}", f"/proc/{name}"]
    for name in _PROC_HIDDEN:
        if os.path.isdir(f"/proc/{name}"):
            argv += ["--tmpfs", f"/proc/{name}", "--remount-ro", f"/proc/{name}"]
        elif os.path.exists(f"/proc/{name}"):
            argv += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    return argv


def gvisor_bundle(runtime: Runtime, box: Box, folder: str) -> None:
    """Write an OCI bundle: config.json and the read-only root."""
    root = os.path.join(folder, "rootfs")
    os.makedirs(root, exist_ok=True)
    for target, link in usr_links():
        if not os.path.lexists(root + link):
            os.symlink(target, root + link)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(gvisor_spec(runtime, box, root), file)


def gvisor_spec(runtime: Runtime, box: Box, root: str) -> dict[str, Any]:
    """Return the config of an OCI bundle. root: host folder of the read-only root."""
    binds = [*shared_binds(runtime), *split_usr(), *box.binds]
    size = f"size={box.scratch_bytes}"
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
    ]
    mounts += [
        {"destination": at, "type": "tmpfs", "source": "tmpfs", "options": [size, "mode=1777"]}
        for at in ("/tmp", HOME)  # noqa: S108
    ]
    mounts += [
        {
            "destination": bind.at,
            "type": "bind",
            "source": bind.source,
            "options": ["rbind", "ro" if bind.read_only else "rw"],
        }
        for bind in binds
    ]
    mounts += [
        {"destination": path, "type": "tmpfs", "source": "tmpfs", "options": ["ro", "size=4096"]}
        for path in hidden_inside(runtime, binds)
    ]
    return {
        "ociVersion": "1.0.0",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(box.argv),
            "env": [f"{name}={value}" for name, value in {**base_env(), **box.env}.items()],
            "cwd": box.workdir,
            "capabilities": {},
            "noNewPrivileges": True,
        },
        "root": {"path": root, "readonly": True},
        "hostname": HOSTNAME,
        "mounts": mounts,
        "linux": {"namespaces": [{"type": t} for t in ("pid", "network", "ipc", "uts", "mount")]},
    }
