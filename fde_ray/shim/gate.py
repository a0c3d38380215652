"""The isolation gate of a pod: no agent before every forbidden address has stayed out of reach.

Network policies take effect seconds after a pod's start. The shim, which shares the agent's
network, tries the forbidden addresses in rounds, and the gateway before and after: silence of all
would prove nothing.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .hosts import NotStarted

CONNECT_S = 1.5
"""How long one round waits for connections: a filter that drops them never answers."""
RETRY_S = 0.5
Pause = Callable[[float], bool]
"""(seconds) -> True as soon as the session is over."""


@dataclass(frozen=True)
class GateSite:
    """forbidden: numeric `host:port`, each known to be alive by those who named it."""

    forbidden: tuple[str, ...]
    rounds: int = 3
    over_s: float = 5.0
    """From the first round's start to the last one's, at least."""
    limit_s: float = 60.0
    every_s: float = 600.0
    """How often it is looked again while the agent works."""


class Address(NamedTuple):
    family: int
    host: str
    port: int


def address_of(text: str) -> Address:
    """Return a numeric `host:port` or `[host]:port`; ValueError when it is none."""
    host, _, port = text.rpartition(":")
    is_six = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if is_six else host
    family = socket.AF_INET6 if is_six else socket.AF_INET
    try:
        socket.inet_pton(family, host)
    except OSError as error:
        raise ValueError(f"{text!r} is not a numeric host:port") from error
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} has no port")
    return Address(family, host, int(port))


def reachable(addresses: Sequence[str], within_s: float = CONNECT_S) -> tuple[str, ...]:
    """Return those that take a TCP connection. All are tried at once, without threads."""
    found: list[str] = []
    waiting: dict[int, tuple[socket.socket, str]] = {}
    poll = select.poll()
    try:
        for text in addresses:
            family, host, port = address_of(text)
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError:
                continue  # a kernel without that family reaches nobody by it
            waiting[sock.fileno()] = sock, text
            sock.setblocking(False)
            error = sock.connect_ex((host, port))
            if error in (0, errno.EINPROGRESS):
                poll.register(sock, select.POLLOUT)
        end = time.monotonic() + within_s
        while (left := end - time.monotonic()) > 0 and (ready := poll.poll(left * 1000)):
            for fd, _ in ready:
                poll.unregister(fd)
                sock, text = waiting[fd]
                if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    found.append(text)
    finally:
        for sock, _ in waiting.values():
            sock.close()
    return tuple(sorted(found))


class Gate:
    """answers: whether the gateway does."""

    def __init__(
        self,
        site: GateSite,
        answers: Callable[[], bool],
        *,
        reachable: Callable[[Sequence[str]], Sequence[str]] = reachable,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._site, self._answers = site, answers
        self._reachable, self._monotonic = reachable, monotonic

    def open(self, pause: Pause) -> dict[str, Any]:
        """Return how it went once all is shut; NotStarted at the limit or when it is over."""
        began = self._monotonic()
        seen: set[str] = set()
        while True:
            problem, still_open = self._try(pause)
            seen.update(still_open)
            took = self._monotonic() - began
            if not problem:
                return {
                    "seconds": round(took, 3),
                    "rounds": self._site.rounds,
                    "forbidden": list(self._site.forbidden),
                    "opened": sorted(seen),
                }
            if took > self._site.limit_s:
                raise NotStarted(f"isolation: {problem} after {took:.0f} s")
            if pause(RETRY_S):
                raise NotStarted("isolation: the session ended first")

    def _try(self, pause: Pause) -> tuple[str, Sequence[str]]:
        """Return why the rounds did not hold ('' if they did), and what took a connection."""
        if not self._answers():
            return "the gateway does not answer", ()
        gap = self._site.over_s / max(1, self._site.rounds - 1)
        for number in range(self._site.rounds):
            began = self._monotonic()
            if found := self._reachable(self._site.forbidden):
                return f"{', '.join(found)} can be reached", found
            left = began + gap - self._monotonic()
            if number < self._site.rounds - 1 and left > 0 and pause(left):
                return "nothing is known", ()
        return ("", ()) if self._answers() else ("the gateway does not answer any more", ())

    def watch(self, pause: Pause, on_loss: Callable[[str], None]) -> None:
        """Look again until it is over; tell of the first forbidden address that can be reached."""
        while not pause(self._site.every_s):
            if found := self._reachable(self._site.forbidden):
                on_loss(f"{', '.join(found)} can be reached")
                return
