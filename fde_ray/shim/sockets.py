"""UNIX sockets at paths of any length: the kernel itself takes 107 bytes.

Apart from `wire`, so that the runner starts without an HTTP library.
"""

from __future__ import annotations

import os
import socket


def connect_unix(path: str, timeout: float | None) -> socket.socket:
    """Connect to a UNIX socket."""
    folder = os.open(os.path.dirname(path) or ".", os.O_PATH | os.O_DIRECTORY)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(folder)
    return sock


def listen_unix(path: str, backlog: int = 16) -> socket.socket:
    """Listen on a UNIX socket."""
    folder = os.open(os.path.dirname(path) or ".", os.O_PATH | os.O_DIRECTORY)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(folder)
    return sock
