"""A pod that carries no run: it tells what a pod of its role can reach, and ends.

Rules of a network take effect seconds after a pod starts, so it asks again until every forbidden
address has failed in round after round, or its time is up. A decoy listens and is never reached.
"""

from __future__ import annotations

import argparse
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

REPORT = "/dev/termination-log"
"""What is written there is the container's last word, which its status repeats."""
PATIENCE_S = 1.0
PAUSE_S = 0.5

Reaches = Callable[[str], bool]


def main(argv: list[str]) -> int:
    asked = _parsed(argv)
    if asked.listen:
        decoy(asked.listen).serve_forever()
    watched = look_around(
        asked.open,
        asked.closed,
        reaches,
        rounds=asked.rounds,
        over_s=asked.over,
        limit_s=asked.limit,
    )
    with open(asked.report, "w", encoding="ascii") as file:
        file.write(json.dumps({"format": 1, **watched, "at": time.time()}, separators=(",", ":")))
    return 0


def look_around(
    wanted: list[str],
    forbidden: list[str],
    reached: Reaches,
    *,
    rounds: int,
    over_s: float,
    limit_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Return what was reached in the last round, and after how many seconds the rest failed.

    `closed_after_s` None = some forbidden address was still reached, or not refused for long
    enough, when the limit came.
    """
    began = clock()
    clean, since = 0, began
    while True:
        round_began = clock()
        found = _tried([*wanted, *forbidden], reached)
        leaks = [address for address in forbidden if found[address]]
        missing = [address for address in wanted if not found[address]]
        if leaks or missing:
            clean = 0
        else:
            clean, since = clean + 1, since if clean else round_began
        is_closed = clean >= rounds and clock() - since >= over_s
        if is_closed or clock() - began >= limit_s:
            after = round(since - began, 1) if is_closed else None
            return {"reached": leaks, "missing": missing, "closed_after_s": after}
        sleep(PAUSE_S)


def reaches(address: str) -> bool:
    """Whether a connection opens; silence counts as no, and so does what is no address."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE_S).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _tried(addresses: Iterable[str], reached: Reaches) -> dict[str, bool]:
    """Try all at once, so that a round takes no longer than one silence."""
    found: dict[str, bool] = {}

    def attempt(address: str) -> None:
        found[address] = reached(address)

    threads = [threading.Thread(target=attempt, args=(each,), daemon=True) for each in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def decoy(port: int) -> ThreadingHTTPServer:
    """Return what answers every request with yes, by both families where the kernel has them."""
    try:
        return _OfBoth(("", port), _Yes)
    except OSError:
        return ThreadingHTTPServer(("", port), _Yes)


class _OfBoth(ThreadingHTTPServer):
    """A cluster may name its pods by either."""

    address_family = socket.AF_INET6

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Not that of HTTPServer, which looks its own name up.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "", self.server_address[1]


class _Yes(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """The kubelet asks each second; nobody reads it."""


def _parsed(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fde-shim.pyz canary")
    parser.add_argument("--listen", type=int, default=0)
    parser.add_argument("--open", action="append", default=[])
    parser.add_argument("--closed", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--over", type=float, default=5.0)
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--report", default=REPORT)
    return parser.parse_args(argv)
