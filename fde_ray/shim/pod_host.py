"""A session whose agent lives in another container of the same pod.

The shim cannot kill it: it stops saying yes to the kubelet (`health`), hangs up, and takes the
agent's side for dead when the runner, PID 1 of that container, has closed its connection and the
kubelet asks no more.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from .control import ControlLine
from .gate import Gate
from .health import Health
from .hosts import End, Launched, NotStarted
from .inputs import Inputs
from .limits import ClaimedMeter, Meter
from .plane import Plane
from .pod_site import PodSite
from .pod_staging import PodStaging
from .room import give_memory_back
from .staging import Staging

LOOPBACK = "127.0.0.1"
BUFFER_BYTES = 128 << 10
CONNECT_TIMEOUT_S = 300.0
"""The agent's container may start long after ours, on a node that is busy."""


class PodLaunched(ControlLine):
    def __init__(
        self, control: socket.socket, health: Health, *, quiet_s: float, limit_s: float
    ) -> None:
        super().__init__(control)
        self._health, self._quiet_s, self._limit_s = health, quiet_s, limit_s
        self.on_usage: Callable[[Mapping[str, Any]], None] = lambda _: None

    def hear(self) -> dict[str, Any] | None:
        """As any control line; what the runner tells of its usage goes elsewhere."""
        while (message := super().hear()) is not None and message.get("type") == "usage":
            self.on_usage(message)
        return message

    def facts(self) -> dict[str, Any]:
        return {}

    def strike(self) -> None:
        self._health.end()
        self.hang_up()

    def kill(self, hurry: threading.Event) -> End:
        self.strike()
        while True:
            is_closed = self.is_closed(0.1)
            is_dead = is_closed and self._health.quiet_s() >= self._quiet_s
            took = self._health.since_end()
            if is_dead or hurry.is_set() or took > self._limit_s:
                return End(None, is_dead, round(took, 3))
            if is_closed:
                hurry.wait(0.1)


class PodHost:
    """Fits `hosts.Host`. Health and control are open from the start: both others wait for them."""

    notes_turns = True
    room_bytes = 64 << 20
    """A quarter of what a shim's container has (`KubernetesProfile.shim_memory`)."""

    def __init__(self, site: PodSite, plane: Plane) -> None:
        self._site = site
        self.end_delay_s = site.quiet_s
        self._gate = Gate(site.gate, plane.answers)
        self._probed = _sole_listener("", site.health_port, 64)
        self._health = Health(self._probed, site.health_path)
        self._health.start()
        self._control = _sole_listener(LOOPBACK, site.control_port, 1)

    def staging(self, inputs: Inputs) -> Staging:
        return PodStaging(self._site.mounts, inputs)

    def open(self, inputs: Inputs) -> None:
        """Volumes and walls are the pod's; ours are narrow, and the agent pushes at them."""
        give_memory_back()

    def close(self) -> None:
        self._health.end()

    def shut(self) -> None:
        """Give the ports back, for a process that goes on."""
        self._health.close()
        self._probed.close()
        self._control.close()

    def relay_listener(self) -> socket.socket:
        listener = _sole_listener(LOOPBACK, self._site.relay_port, 64)
        # What the kernel holds for a connection counts as our memory; it is taken over from here.
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            listener.setsockopt(socket.SOL_SOCKET, buffer, BUFFER_BYTES)
        return listener

    def launch(self, inputs: Inputs, over: threading.Event) -> Launched:
        launched = self.launch_runner(over)
        self._meter = ClaimedMeter(inputs.limits.cpu, inputs.limits.memory_bytes)
        launched.on_usage = self._meter.claim
        return launched

    def launch_runner(self, over: threading.Event) -> PodLaunched:
        """Take the one connection; nobody is listened to after it."""
        try:
            control = self._accept(over)
        finally:
            self._control.close()
        site = self._site
        return PodLaunched(control, self._health, quiet_s=site.quiet_s, limit_s=site.death_limit_s)

    def _accept(self, over: threading.Event) -> socket.socket:
        end = time.monotonic() + CONNECT_TIMEOUT_S
        self._control.settimeout(0.2)
        while time.monotonic() < end and not over.is_set():
            try:
                control, _ = self._control.accept()
            except TimeoutError:
                continue
            control.settimeout(None)
            control.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return control
        raise NotStarted("the runner of the agent's container did not connect")

    def check_isolation(self, hello: dict[str, Any], over: threading.Event) -> dict[str, Any]:
        if hello.get("pid") != 1:
            # Its death must be that of all its container.
            raise NotStarted(f"the runner is process {str(hello.get('pid'))[:20]}, not 1")
        return {"checked_by": "gate", "gate": self._gate.open(over.wait)}

    def keep_watch(self, over: threading.Event, on_loss: Callable[[str], None]) -> None:
        self._gate.watch(over.wait, on_loss)

    def meter(self) -> Meter:
        return self._meter

    def paths(self) -> dict[str, str]:
        return {}

    def oom_kills(self) -> int:
        return 0


def _sole_listener(host: str, port: int, backlog: int) -> socket.socket:
    """Listen where nobody else can; host "" = at every address of the pod, whichever family its
    cluster names it by.

    Without SO_REUSEADDR: with it, gVisor lets an agent listen on the same port of the pod's own
    address, and the kubelet's questions about the agent would reach the agent.
    """
    if not host and (both := _bound(socket.AF_INET6, "", port)) is not None:
        both.listen(backlog)
        return both
    sock = _bound(socket.AF_INET, host, port)
    if sock is None:
        raise OSError("the kernel has no IPv4")
    sock.listen(backlog)
    return sock


def _bound(family: int, host: str, port: int) -> socket.socket | None:
    """Return a socket at that place, for IPv6 of both families; None = the kernel has none."""
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRNOTAVAIL:
            return None
        raise
    return sock
