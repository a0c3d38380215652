"""What a shim leaves in its private folder: `state.json` to re-attach by, and `events.jsonl`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

FORMAT = 1


class Busy(Exception):
    """Another shim owns this session."""


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None when there is none or it died.

    Together with the pid it names a process for good; a zombie counts as dead.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def write_last_word(path: str, state: dict[str, Any]) -> None:
    """Write what a kubelet reads when the container ends: at most 4,096 bytes, in place."""
    known = {key: state[key] for key in ("phase", "failure", "detail") if key in state}
    known["detail"] = str(known.get("detail", ""))[:300]
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC)  # the kubelet has made it
        with open(fd, "w", encoding="ascii") as file:
            json.dump({"format": FORMAT, **known}, file)


def lock_session(folder: str) -> int:
    """Return a descriptor that owns the session until it is closed; raise Busy if taken."""
    fd = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise Busy("another shim owns this session") from error
    return fd


class Journal:
    """last_word: a file that holds phase and failure alone, for who cannot see the folder."""

    def __init__(
        self, folder: str, now: Callable[[], float] = time.time, *, last_word: str = ""
    ) -> None:
        # By descriptor: a folder of the same name may belong to another session by then.
        self._folder, self._now = os.open(folder, os.O_RDONLY | os.O_DIRECTORY), now
        # Guards the event file and the state, which several threads write.
        self._lock = threading.Lock()
        self._last_word = last_word
        self._state: dict[str, Any] = {"format": FORMAT}
        self._events = open(  # noqa: SIM115  (open as long as the shim lives)
            "events.jsonl", "ab", opener=self._private
        )
        self._sent = 0
        self._seq = 0

    def state(self, **changes: Any) -> None:
        """Change the state on disk, all at once; quiet when the folder is gone."""
        with self._lock, contextlib.suppress(FileNotFoundError):
            self._state |= changes
            with open("state.json.new", "w", encoding="utf-8", opener=self._private) as file:
                json.dump(self._state, file)
            here = self._folder
            os.replace("state.json.new", "state.json", src_dir_fd=here, dst_dir_fd=here)
            if self._last_word:
                write_last_word(self._last_word, self._state)

    def event(self, name: str, **fields: Any) -> None:
        """Note one change of state; never prompts, tokens or keys."""
        line = json.dumps({"v": FORMAT, "at": self._now(), "event": name, **fields})
        with self._lock:
            self._events.write(line.encode() + b"\n")
            self._events.flush()

    def unsent(self) -> tuple[int, bytes]:
        """Return (seq, gzip of the events since the last `sent`); no bytes when there are none."""
        with self._lock, open("events.jsonl", "rb", opener=self._private) as file:
            file.seek(self._sent)
            self._pending = file.read(4 << 20)
        if not self._pending:
            return self._seq, b""
        gzip = zlib.compressobj(6, zlib.DEFLATED, 31)
        return self._seq, gzip.compress(self._pending) + gzip.flush()

    def sent(self) -> None:
        self._sent += len(self._pending)
        self._seq += 1

    def _private(self, name: str, flags: int) -> int:
        return os.open(name, flags, 0o600, dir_fd=self._folder)
