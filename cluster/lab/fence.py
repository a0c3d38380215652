"""What holds the cluster: a mount and a network namespace, kept by one sleeping process.

Whatever the cluster mounts, links or filters is inside, so all of it is gone when the last process
is. The kernel settings a kubelet writes are covered by files of the same name, and the few folders
that container programs insist on are covered by folders of the lab.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from fde_ray.model.errors import UserError, shortened

from .layout import NAME, Layout
from .network import Network
from .processes import PidRecord, last_lines, lives, read_record, spawn, stop, write_record

COVERED_FOLDERS = (
    "/run/containerd",
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/log/containers",
)
COVERED_SETTINGS = {
    "kernel/keys/root_maxbytes": "25000000",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
}
"""Setting of the whole machine → what a kubelet wants to find there."""
HOLDER = "fence"
_READY_S = 10.0
_INSIDE_LINK = "eth0"


def holder_script(layout: Layout) -> str:
    """Return what the holder runs inside its new namespaces before it falls asleep."""
    home = layout.home
    lines = ["mount --make-rshared /"]
    for folder in COVERED_FOLDERS:
        mine = _quoted(home / "covered" / folder.strip("/").replace("/", "-"))
        lines += [f"mkdir -p {mine}", f"mount --bind {mine} {folder}"]
    for name, value in COVERED_SETTINGS.items():
        mine = _quoted(home / "settings" / name.replace("/", "."))
        lines += [f"echo {value} > {mine}", f"mount --bind {mine} /proc/sys/{name}"]
    lines += [
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        f"touch {_quoted(home / HOLDER)}",
        "exec sleep infinity",
    ]
    return "\n".join(lines)


def link_commands(network: Network, holder: int) -> list[str]:
    """Return the commands, run on the machine, that join it to the lab; no route leads further."""
    inside = f"nsenter --target {holder} --net"
    return [
        f"ip link add {NAME} type veth peer name {_INSIDE_LINK} netns {holder}",
        f"ip address add {network.machine}/30 dev {NAME}",
        f"ip link set {NAME} up",
        f"{inside} ip link set lo up",
        f"{inside} ip address add {network.node}/30 dev {_INSIDE_LINK}",
        f"{inside} ip link set {_INSIDE_LINK} up",
        f"ip route add {network.block} via {network.node} dev {NAME}",
    ]


def missing_folders() -> list[str]:
    """Return the covered folders, outermost first, that this machine does not have."""
    found = []
    for folder in map(Path, COVERED_FOLDERS):
        chain = [folder, *folder.parents]
        found += [str(path) for path in reversed(chain) if not path.exists()]
    return list(dict.fromkeys(found))


def raise_fence(layout: Layout, network: Network, group: Path, env: Mapping[str, str]) -> PidRecord:
    """Return the holder, started if it is not there yet."""
    record = holder(layout)
    if record is not None:
        return record
    for folder in COVERED_FOLDERS:
        Path(folder).mkdir(parents=True, exist_ok=True)
    (layout.home / "settings").mkdir(parents=True, exist_ok=True)
    ready, log = layout.home / HOLDER, layout.logs / f"{HOLDER}.log"
    ready.unlink(missing_ok=True)
    argv = ["unshare", "--mount", "--net", "--propagation", "private", "/bin/sh", "-euc"]
    record = spawn([*argv, holder_script(layout)], log, group, env)
    write_record(layout.pids / HOLDER, record)
    try:
        _finish(record, network, ready, log)
    except UserError:
        # A fence without its link must not be taken for a whole one by the next command.
        stop(record, grace_s=1.0)
        raise
    return record


def _finish(record: PidRecord, network: Network, ready: Path, log: Path) -> None:
    give_up = time.monotonic() + _READY_S
    while not ready.exists():
        if not lives(record) or time.monotonic() > give_up:
            raise UserError(f"the lab's namespaces could not be made: {last_lines(log)}")
        time.sleep(0.01)
    for command in link_commands(network, record.pid):
        run(command.split())


def holder(layout: Layout) -> PidRecord | None:
    """Return the process whose namespaces are the lab's; None when it is down."""
    record = read_record(layout.pids / HOLDER)
    return record if lives(record) else None


def entering(record: PidRecord) -> list[str]:
    """Return the command that runs what follows it inside the fence."""
    return ["nsenter", "--target", str(record.pid), "--mount", "--net", "--"]


def run(
    argv: Sequence[str],
    *,
    timeout_s: float = 60.0,
    text: str = "",
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a command that must succeed and return what it printed.

    text: its standard input; env: ours when None.
    """
    done = subprocess.run(
        argv, input=text, capture_output=True, text=True, errors="replace", check=False,
        timeout=timeout_s, env=env,
    )  # fmt: skip
    if done.returncode:
        said = shortened((done.stderr or done.stdout).strip())
        raise UserError(f"`{shortened(' '.join(argv), 200)}` failed: {said}")
    return done.stdout


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
