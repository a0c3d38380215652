"""Machines that are not there: each a network namespace of its own behind the node's.

They stand for what a pod must not reach and a test must not disturb: a metadata service, a second
node, the world outside. Nothing they send or get leaves this machine: the only way to them is one
link into the network namespace of the node, and they end with the process that made them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

from fde_ray.model.errors import UserError, shortened

_PROGRAM = Path(__file__).parent / "programs" / "decoy.py"
_LINKS = "198.51.100"
"""A documentation range, for the two ends of each link."""
_V6 = "2001:db8:fde"
Address = tuple[str, int]


class Machine(NamedTuple):
    """ports: target → (address, port, protocol)."""

    name: str
    targets: Mapping[str, tuple[str, int, str]]
    v6: bool = False

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(host for host, _, _ in self.targets.values()))


MACHINES = (
    Machine("metadata", {"metadata": ("169.254.169.254", 80, "tcp")}),
    Machine(
        "node2",
        {
            "node2_kubelet": ("203.0.113.2", 10250, "tcp"),
            "node2_read_only": ("203.0.113.2", 10255, "tcp"),
            "node2_ssh": ("203.0.113.2", 22, "tcp"),
        },
    ),
    Machine(
        "outside",
        {
            "outside_tcp": ("192.0.2.10", 443, "tcp"),
            "outside_udp": ("192.0.2.10", 4433, "udp"),
            "outside_dns": ("192.0.2.10", 53, "udp"),
            "outside_v6": (f"{_V6}:ffff::10", 4433, "udp"),
        },
        v6=True,
    ),
)
NODE_PORT_V6 = 39217


class Decoys:
    """Use it as a context. node_pid: of a process in the node's network namespace."""

    def __init__(self, node_pid: int, folder: Path) -> None:
        self._node = ["nsenter", "--target", str(node_pid), "--net", "--"]
        self._folder = folder
        self._stack = ExitStack()

    @property
    def targets(self) -> dict[str, Address]:
        found = {
            name: (host, port)
            for machine in MACHINES
            for name, (host, port, _) in machine.targets.items()
        }
        return found | {"outside_ip": ("192.0.2.10", 0), "link_v6": ("", NODE_PORT_V6)}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for number, machine in enumerate(MACHINES):
                self._raise(stack, number, machine)
            self._forward_v6(stack)
            self._listen_on_the_node(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def seen(self) -> frozenset[str]:
        """Return every nonce that came to a decoy, in whatever packet."""
        words: set[str] = set()
        for machine in MACHINES:
            log = self._log(machine)
            if log.exists():
                words |= set(log.read_text(encoding="ascii").split())
        return frozenset(words)

    def _log(self, machine: Machine) -> Path:
        return self._folder / f"{machine.name}.log"

    def _raise(self, stack: ExitStack, number: int, machine: Machine) -> None:
        options = {
            "tcp": [[h, p] for h, p, kind in machine.targets.values() if kind == "tcp"],
            "udp": [[h, p] for h, p, kind in machine.targets.values() if kind == "udp"],
            "log": str(self._log(machine)),
        }
        process = self._start(stack, ["unshare", "--net", "--"], options)
        for command in link_commands(self._node, number, machine, process.pid):
            _run(command)
        _answered(process, "ready")

    def _listen_on_the_node(self, stack: ExitStack) -> None:
        """Something that hears IPv6 on the node's ends of all links."""
        process = self._start(stack, [], {"tcp": [["::", NODE_PORT_V6]], "log": ""})
        _answered(process, "ready")

    def _forward_v6(self, stack: ExitStack) -> None:
        """Let the node pass IPv6 on: without it the control has no way, whatever the fence."""
        setting = "net.ipv6.conf.all.forwarding"
        before = _run([*self._node, "sysctl", "-n", setting]).strip()
        _run([*self._node, "sysctl", "-q", "-w", f"{setting}=1"])
        stack.callback(_run, [*self._node, "sysctl", "-q", "-w", f"{setting}={before}"])

    def _start(self, stack: ExitStack, prefix: list[str], options: object) -> subprocess.Popen[str]:
        argv = [*self._node, *prefix, sys.executable, "-I", "-S", str(_PROGRAM)]
        process = stack.enter_context(
            subprocess.Popen(
                [*argv, json.dumps(options)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
        stack.callback(process.kill)
        _heard(process, "up")
        return process


def link_commands(node: list[str], number: int, machine: Machine, pid: int) -> list[list[str]]:
    """Return the commands that join the machine `pid` to the node."""
    inside = ["nsenter", "--target", str(pid), "--net", "--"]
    link, first = f"fdedecoy{number}", 4 * number
    near, far = f"{_LINKS}.{first + 1}", f"{_LINKS}.{first + 2}"
    words = [
        (node, f"ip link add {link} type veth peer name eth0 netns {pid}"),
        (node, f"ip address add {near}/30 dev {link}"),
        (node, f"ip link set {link} up"),
        (inside, "ip link set lo up"),
        (inside, f"ip address add {far}/30 dev eth0"),
        (inside, "ip link set eth0 up"),
        (inside, f"ip route add default via {near}"),
    ]
    if machine.v6:
        near6, far6 = f"{_V6}:{number}::1", f"{_V6}:{number}::2"
        words += [
            (node, f"ip address add {near6}/64 dev {link} nodad"),
            (inside, f"ip address add {far6}/64 dev eth0 nodad"),
            (inside, f"ip route add default via {near6}"),
        ]
    for address in machine.addresses:
        is_v6 = ":" in address
        width = 128 if is_v6 else 32
        via = far6 if is_v6 else far
        words += [
            (inside, f"ip address add {address}/{width} dev lo"),
            (node, f"ip route add {address}/{width} via {via}"),
        ]
    return [[*prefix, *text.split()] for prefix, text in words]


def _answered(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    _heard(process, word)


def _heard(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    if process.stdout.readline().strip() != word:
        process.kill()
        assert process.stderr is not None
        said = shortened(process.stderr.read().strip()[-300:])
        raise UserError(f"a decoy could not be made (this needs root): {said}")


def _run(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
    if "File exists" in done.stderr:
        raise UserError("the decoys of another suite are there: wait until it has ended")
    if done.returncode:
        said = shortened((done.stderr or done.stdout).strip())
        raise UserError(f"a decoy could not be made: `{' '.join(argv[-8:])}`: {said}")
    return done.stdout
