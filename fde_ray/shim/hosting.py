"""The shim as a process: its lock, its way into the background, its last word when it breaks."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback

from .inputs import BadInput, Config, read_config
from .journal import Busy, Journal, lock_session, start_time
from .plane import GivenUp, Plane
from .session import Failed, Shim
from .wire import Refused


def main(argv: list[str]) -> int:
    """`--config FILE [--detach]`: with --detach, print pid and start time and leave the shim be."""
    if len(argv) < 2 or argv[0] != "--config":
        print("usage: fde-shim.pyz shim --config FILE [--detach]", file=sys.stderr)
        return 2
    config = read_config(argv[1])
    try:
        lock = lock_session(config.dir)
    except Busy as error:
        print(error, file=sys.stderr)
        return 3
    if os.path.exists(os.path.join(config.dir, "state.json")):
        print("this session has run already", file=sys.stderr)
        return 4
    if "--detach" in argv and _detach(config.dir):
        return 0
    try:
        return _guarded(config)
    finally:
        os.close(lock)


def _detach(folder: str) -> bool:
    """Go on as a process of its own session; return True in the one that should leave."""
    ready, child_ready = os.pipe()
    if os.fork():
        os.close(child_ready)
        sys.stdout.buffer.write(os.read(ready, 200))
        sys.stdout.flush()
        return True
    os.setsid()
    nothing = os.open("/dev/null", os.O_RDWR)
    log = os.open(os.path.join(folder, "shim.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(child_ready, json.dumps({"pid": os.getpid(), "start_time": _own_start()}).encode())
    os.close(ready)
    os.close(child_ready)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)
    os.chdir("/")
    return False


def _own_start() -> int | None:
    return start_time(os.getpid())


def _guarded(config: Config) -> int:
    journal = Journal(config.dir)
    journal.state(phase="starting", pid=os.getpid(), start_time=_own_start())
    shim = Shim(config, journal, Plane(config.plane, config.subject, config.secret))
    signal.signal(signal.SIGTERM, lambda *_: shim.abandon())
    try:
        shim.run()
    except Failed as error:
        kind, detail = error.kind, error.detail
    except (BadInput, Refused, GivenUp) as error:
        kind, detail = "sandbox_start", str(error)
    except Exception as error:  # noqa: BLE001  (task boundary: the state must say what happened)
        traceback.print_exc()
        kind, detail = "shim_lost", f"{type(error).__name__}: {error}"
    else:
        return 0
    if shim.is_abandoned:
        journal.state(phase="stopped")
        return 0
    journal.event("failed", kind=kind, detail=detail[:300])
    journal.state(phase="failed", failure=kind, detail=detail[:500])
    return 1
