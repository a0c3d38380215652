"""The base URL of an agent: bytes between 127.0.0.1 and the shim's relay."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from functools import partial

from .sockets import connect_unix


class DirectRelay:
    """The shim listens on the agent's own loopback: there is nothing to carry."""

    def __init__(self, url: str) -> None:
        self.url = url

    def serve(self) -> None:
        pass


class PipedRelay:
    """Pipes bytes between 127.0.0.1 and the shim's UNIX socket."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def serve(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
                outer = connect_unix(self._path, None)
            except OSError:
                time.sleep(0.05)
                continue
            for source, target in ((inner, outer), (outer, inner)):
                try:
                    start_thread("pipe", partial(_pipe, source, target))
                except RuntimeError:  # no more threads: the agent has used them up
                    inner.close()
                    outer.close()
                    break


def _pipe(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
    # The other direction ends by itself: both peers see the shutdown.


def start_thread(name: str, target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread
