"""Another run: it answers whoever reaches it, and says twice a second that it is well."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time

from .harness import await_start

_BEAT_S = 0.5


def main(*, port: int, wait_s: float, is_run: bool) -> None:
    """is_run: it has a shim, whose start it waits for."""
    control = await_start(wait_s) if is_run else None
    tcp = socket.create_server(("", port))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("", port))
    for target, sock in ((_answer, tcp), (_echo, udp)):
        threading.Thread(target=target, args=(sock,), daemon=True).start()
    give_up = time.monotonic() + wait_s
    while time.monotonic() < give_up:
        sys.stdout.write(json.dumps({"kind": "beat", "at": time.time()}) + "\n")
        sys.stdout.flush()
        time.sleep(_BEAT_S)
    if control is not None:
        control.close()


def _answer(listener: socket.socket) -> None:
    while True:
        try:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(b"HTTP/1.0 200 OK\r\n\r\nneighbour\n")
        except OSError:
            continue


def _echo(sock: socket.socket) -> None:
    while True:
        try:
            data, sender = sock.recvfrom(4096)
            sock.sendto(data, sender)
        except OSError:
            continue
