"""Looks from the node for what attempts leave outside of their pods, and what its kernel notes."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

_NONCE = re.compile(rb"fdeprobe[0-9a-f]{6}")
_EVERY_S = 0.4
_LOG_BYTES = 1 << 20


def kernel_log() -> str:
    """Return the end of the node's kernel log; empty when it may not be read."""
    buffer = ctypes.create_string_buffer(_LOG_BYTES)
    size = ctypes.CDLL(None).klogctl(3, buffer, _LOG_BYTES)
    return buffer.raw[: max(size, 0)].decode("utf-8", "replace")


class TraceObserver:
    """Collects, while it is open, every nonce that names a process or a mount of this machine.

    And every line of the kernel's log, whose ring may forget it within minutes. A thread of its
    own: it must look on while others wait. Call it only where the node's processes are to be seen,
    which `node_pid` stands for.
    """

    def __init__(
        self, proc: Path = Path("/proc"), read_log: Callable[[], str] = kernel_log
    ) -> None:
        self._proc, self._read_log = proc, read_log
        self._over = threading.Event()
        self._seen: set[str] = set()
        self._lines: dict[str, None] = {}
        self._thread = threading.Thread(target=self._look, name="traces", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def seen(self) -> frozenset[str]:
        return frozenset(self._seen)

    @property
    def log(self) -> str:
        """Every line of the kernel's log until now; empty when it may not be read."""
        return "\n".join([*self._lines, *self._read_log().splitlines()])

    def _look(self) -> None:
        while not self._over.wait(_EVERY_S):
            self._seen |= traces(self._proc)
            self._lines.update(dict.fromkeys(self._read_log().splitlines()))


def traces(proc: Path) -> set[str]:
    """Return the nonces that name processes, links of any network, or sources of mounts now."""
    found: set[str] = set()
    looked: set[str] = set()
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            found |= _nonces((folder / "comm").read_bytes())
            for kind, file in (("mnt", "mountinfo"), ("net", "net/dev")):
                space = str((folder / "ns" / kind).readlink())
                if space not in looked:
                    looked.add(space)
                    found |= _nonces((folder / file).read_bytes())
        except OSError:
            continue
    return found


def _nonces(data: bytes) -> set[str]:
    return {word.decode() for word in _NONCE.findall(data)}
