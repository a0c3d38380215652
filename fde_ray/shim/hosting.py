"""The shim as a process: its lock, its way into the background, its last word when it breaks."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable

from .hosts import NotStarted
from .inputs import BadInput, Config, read_config
from .journal import Busy, Journal, lock_session, start_time, write_last_word
from .local_host import LocalHost
from .plane import GivenUp, Plane
from .pod_host import PodHost
from .pod_site import TERMINATION_LOG, take_config
from .serving import BOXES, BoxShim
from .session import Failed, Shim
from .wire import Refused

USAGE = "usage: fde-shim.pyz shim --pod | --config FILE [--detach]"


def main(argv: list[str]) -> int:
    """`--pod`: one of two containers. `--config FILE [--detach]`: below a sandbox of this machine;
    with --detach, print pid and start time and leave the shim be.
    """
    if argv == ["--pod"]:
        return _in_pod()
    if len(argv) < 2 or argv[0] != "--config":
        print(USAGE, file=sys.stderr)
        return 2
    config, site = read_config(argv[1])
    try:
        lock = _claim(config.dir)
    except Busy as error:
        print(error, file=sys.stderr)
        return 3
    except _RanAlready as error:
        print(error, file=sys.stderr)
        return 4
    if "--detach" in argv and _detach(config.dir):
        return 0
    try:
        journal = Journal(config.dir)
        return _guarded(
            config, journal, lambda plane: Shim(config, journal, plane, LocalHost(config, site))
        )
    finally:
        os.close(lock)


def _in_pod() -> int:
    """A container that was started again has lost its session: it says so and leaves."""
    try:
        config, site = take_config(os.environ)
        _claim(config.dir)
    except (BadInput, Busy, OSError) as error:
        return _break_off(2, "sandbox_start", str(error))
    except _RanAlready as error:
        return _break_off(4, "shim_lost", str(error))
    journal = Journal(config.dir, last_word=site.termination_log)

    def program(plane: Plane) -> Shim | BoxShim:
        host = PodHost(site, plane)
        if config.role in BOXES:
            return BoxShim(config, journal, plane, host, site)
        return Shim(config, journal, plane, host)

    return _guarded(config, journal, program)


def _break_off(code: int, kind: str, detail: str) -> int:
    print(detail, file=sys.stderr)
    write_last_word(TERMINATION_LOG, {"phase": "failed", "failure": kind, "detail": detail})
    return code


class _RanAlready(Exception):
    pass


def _claim(folder: str) -> int:
    """Return the descriptor that owns the session for as long as it is open."""
    lock = lock_session(folder)
    if os.path.exists(os.path.join(folder, "state.json")):
        os.close(lock)
        raise _RanAlready("this session has run already")
    return lock


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


def _guarded(config: Config, journal: Journal, program: Callable[[Plane], Shim | BoxShim]) -> int:
    """Run the session to its end; its state says what became of it, whatever that is."""
    shim: Shim | BoxShim | None = None
    try:
        journal.state(phase="starting", pid=os.getpid(), start_time=_own_start())
        plane = Plane(config.plane, config.subject, config.secret)
        shim = program(plane)
        signal.signal(signal.SIGTERM, lambda *_: shim.abandon())
        shim.run()
    except Failed as error:
        kind, detail = error.kind, error.detail
    except (BadInput, Refused, GivenUp, NotStarted) as error:
        kind, detail = "sandbox_start", str(error)
    except Exception as error:  # noqa: BLE001  (task boundary: the state must say what happened)
        traceback.print_exc()
        kind, detail = "shim_lost", f"{type(error).__name__}: {error}"
    else:
        return 0
    if shim is not None and shim.is_abandoned:
        journal.state(phase="stopped")
        return 0
    journal.event("failed", kind=kind, detail=detail[:300])
    journal.state(phase="failed", failure=kind, detail=detail[:500])
    return 1
