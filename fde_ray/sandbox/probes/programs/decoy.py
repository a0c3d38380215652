"""A machine that is not there: answers at every address it is given, and notes who came by.

`decoy.py JSON` with {"tcp": [[host, port], …], "udp": […], "log": path or ""}. It says `up`, waits
for a line, listens and says `ready`. It notes the words of every packet that arrives, whatever its
kind, and ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import socket
import sys
from typing import Any

_NONCE = re.compile(rb"fdeprobe[0-9a-f]{6,}")
_ALL_KINDS = 0x0003


def main(text: str) -> None:
    options: dict[str, Any] = json.loads(text)
    say("up")
    os.read(0, 4096)
    chosen = selectors.DefaultSelector()
    chosen.register(0, selectors.EVENT_READ, _end)
    if options["log"]:
        log = open(options["log"], "a", buffering=1, encoding="ascii")  # noqa: SIM115
        sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_KINDS))
        chosen.register(sniffer, selectors.EVENT_READ, lambda sock: _note(log, sock.recv(65536)))
    for host, port in options.get("tcp", []):
        listener = socket.create_server((host, port), family=_family(host))
        chosen.register(listener, selectors.EVENT_READ, _answer)
    for host, port in options.get("udp", []):
        sock = socket.socket(_family(host), socket.SOCK_DGRAM)
        sock.bind((host, port))
        chosen.register(sock, selectors.EVENT_READ, _echo)
    say("ready")
    while True:
        for key, _ in chosen.select():
            key.data(key.fileobj)


def say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


def _family(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _answer(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock, _ = listener.accept()
        with sock:
            sock.settimeout(0.2)
            with contextlib.suppress(OSError):
                sock.recv(4096)
            sock.sendall(b"HTTP/1.0 200 OK\r\n\r\ndecoy\n")


def _echo(sock: socket.socket) -> None:
    data, sender = sock.recvfrom(65536)
    with contextlib.suppress(OSError):
        sock.sendto(data, sender)


def _note(log: Any, frame: bytes) -> None:
    for nonce in set(_NONCE.findall(frame)):
        log.write(nonce.decode() + "\n")


def _end(_: int) -> None:
    if not os.read(0, 4096):
        sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
