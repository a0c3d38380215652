"""The shim: one session from its inputs to its final commit.

`Shim.run` is the whole story. Threads beside the main one: heartbeat, relay, reader of the control
connection, watchdog, snapshots; they leave word in the mailbox, and only the main one decides.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any

from .agents import AGENTS
from .clock import SolveClock
from .inputs import BadInput, Config, Inputs, read_config, read_inputs
from .journal import Busy, Journal, lock_session, start_time
from .launching import Launched, NotIsolated, NotStarted, assert_isolated, launch
from .limits import Cgroups, Watchdog
from .mailbox import Letter, Mailbox
from .plane import GivenUp, Plane, insist
from .relay import Relay
from .snapshots import Snapshots
from .staging import Deliverables, Staging
from .unpacking import BadArchive
from .wire import Refused, Unreachable

TEXT_LIMIT = 1 << 20
ENTRIES_LIMIT = 100
POLL_S = 10
EXIT_KINDS = ("agent_error", "agent_resource", "step_limit", "refused")


class Failed(Exception):
    """The session cannot go on for a reason of ours; `kind` is one of the failure table."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail[:500]


class Shim:
    def __init__(self, config: Config, journal: Journal, plane: Plane) -> None:
        self._config, self._journal, self._plane = config, journal, plane
        self._mail = Mailbox()
        self._closing = threading.Event()
        self._give_up = threading.Event()
        self._abandoned = False
        self._turn_no = 0

    def run(self) -> None:
        self._phase("starting")
        inputs = self._take_inputs()
        staging = self._prepare(inputs)
        cgroups = Cgroups(self._config.cgroup, f"fde-{os.getpid()}", inputs.limits)
        try:
            relay = self._open_relay(inputs, staging)
            launched = self._launch(inputs, staging, cgroups)
            self._mail.on_stop = launched.strike
            snapshots = Snapshots(
                self._plane, self._journal, inputs, staging.collected, self._give_up
            )
            try:
                self._solve(inputs, staging, cgroups, launched, relay, snapshots)
            finally:
                code = launched.kill()
                self._journal.event("sandbox_dead", exit_code=code)
            if not self._abandoned:
                self._collect(inputs, snapshots)
        finally:
            self._closing.set()
            cgroups.remove()
        self._phase("stopped" if self._abandoned else "ended")

    def abandon(self) -> None:
        """Stop without collecting; called from a signal handler, so no lock is taken here."""
        self._abandoned = True
        self._give_up.set()
        threading.Thread(target=self._mail.stop, args=("abandoned",), daemon=True).start()

    @property
    def is_abandoned(self) -> bool:
        return self._abandoned

    # --- before the start

    def _take_inputs(self) -> Inputs:
        scope = "solve" if self._config.role == "solve" else "extract"
        self._insist(lambda: self._plane.open(scope))
        inputs = read_inputs(self._insist(lambda: self._plane.call("GET", "/v1/inputs")))
        if inputs.scaffold not in AGENTS:
            raise Failed("sandbox_start", f"unknown scaffold {inputs.scaffold!r}")
        return inputs

    def _prepare(self, inputs: Inputs) -> Staging:
        staging = Staging(self._config.dir, inputs)
        for is_last in (False, False, True):
            try:
                self._insist(lambda: staging.prepare(self._plane))
                break
            except BadArchive as error:
                if is_last:  # the same fault three times is no accident of the transfer
                    raise Failed("sandbox_start", f"archive: {error}") from error
        self._phase("prepared")
        return staging

    def _open_relay(self, inputs: Inputs, staging: Staging) -> Relay:
        path = os.path.join(staging.run, "relay.sock")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        relay = Relay(
            path,
            self._plane,
            self._mail.over,
            evaluate=inputs.evaluate,
            evaluate_limit=min(inputs.limits.archive_bytes, 256 << 20),
            log=self._journal.event,
        )
        _thread("relay", lambda: relay.serve_forever(poll_interval=0.5))
        return relay

    def _launch(self, inputs: Inputs, staging: Staging, cgroups: Cgroups) -> Launched:
        try:
            launched = launch(self._config, inputs, staging, cgroups)
        except (NotStarted, OSError) as error:
            raise Failed("sandbox_start", str(error)) from error
        self._phase(
            "sandboxed",
            sandbox_pid=launched.pid,
            runner_pid=launched.runner_pid,
            runner_start_time=start_time(launched.tree_pid),
        )
        return launched

    def _insist(self, action: Any) -> Any:
        return insist(action, self._mail.over, self._config.give_up_s)

    # --- solving

    def _solve(
        self,
        inputs: Inputs,
        staging: Staging,
        cgroups: Cgroups,
        launched: Launched,
        relay: Relay,
        snapshots: Snapshots,
    ) -> None:
        hello = launched.hear() or {}
        if self._config.runtime.name != "none":
            try:
                facts = assert_isolated(launched, hello)
            except NotIsolated as error:
                raise Failed("isolation_lost", str(error)) from error
            self._journal.event("isolated", **facts)
        agent = AGENTS[inputs.scaffold]
        deliverables = Deliverables(staging.collected, agent.state_dirs, inputs.exclude)
        watchdog = Watchdog(
            launched.tree_pid,
            cgroups,
            inputs.limits,
            staging.collected,
            lambda detail: self._mail.stop("agent_resource", detail=detail),
        )
        self._insist(lambda: self._plane.call("POST", "/v1/started", {}))
        clock = SolveClock(inputs.limits.time_s, inputs.limits.pause_cap_s, time.monotonic())
        self._phase("solving")
        launched.tell(self._start_message(inputs, staging))
        _thread("control", lambda: self._read_control(launched))
        _thread("heartbeat", lambda: self._beat(inputs, clock, relay, watchdog))
        _thread("snapshots", lambda: snapshots.run(self._mail.over, inputs.snapshot_s))
        watchdog.start()
        try:
            self._converse(launched, deliverables, cgroups)
        finally:
            self._mail.stop("finished")
            watchdog.close()

    def _start_message(self, inputs: Inputs, staging: Staging) -> dict[str, Any]:
        is_bare = self._config.runtime.name == "none"
        return {
            "type": "start",
            "agent": inputs.scaffold,
            "prompt": inputs.prompt,
            "model": inputs.model,
            "settings": inputs.settings,
            "max_steps": inputs.max_steps,
            "channel": inputs.channel,
            "has_questions": inputs.has_questions,
            "workdir": inputs.workdir,
            "watched": inputs.collect,
            "paths": staging.paths() if is_bare else {},
            "memory_bytes": inputs.limits.memory_bytes,
            "disk_bytes": inputs.limits.disk_bytes,
            "processes": inputs.limits.processes,
        }

    def _converse(self, launched: Launched, deliverables: Deliverables, cgroups: Cgroups) -> None:
        """Pass turns on and replies back until somebody ends it."""
        while True:
            letter = self._mail.next()
            self._journal.event("letter", kind=letter.kind, **_brief(letter))
            if letter.kind == "turn":
                reply = self._turn(letter.fields, deliverables)
                if reply is None:
                    continue
                if reply.get("action") == "finish":
                    return
                launched.tell(
                    {
                        "type": "message",
                        "text": reply.get("message"),
                        "answers": reply.get("answers") or [],
                    }
                )
                continue
            ended = _exit_of(letter, cgroups.oom_kills())
            if ended is not None:
                self._report_exit(ended)
            return

    def _turn(self, claim: dict[str, Any], deliverables: Deliverables) -> dict[str, Any] | None:
        """Return the plane's reply to one turn; None when a stop came first."""
        self._turn_no += 1
        number = self._turn_no
        body = {
            "turn_no": number,
            "channel": _channel(claim),
            "text": _text(claim.get("text"), TEXT_LIMIT),
            "entries": _entries(claim.get("entries")),
            "has_deliverable": deliverables.exist(),
        }
        try:
            reply = self._insist(lambda: self._plane.call("POST", "/v1/turns", body))
            path = f"/v1/turns/{number}?wait_s={POLL_S}"
            while reply.get("status") != "done":
                if self._mail.over.is_set():
                    return None
                reply = self._insist(lambda: self._plane.call("GET", path, timeout=POLL_S + 30))
        except Refused as error:
            self._mail.stop("turn_refused", detail=str(error))
            return None
        except GivenUp:
            return None
        self._journal.event("turn_done", turn_no=number, action=str(reply.get("action"))[:20])
        return dict(reply)

    def _report_exit(self, ended: dict[str, Any]) -> None:
        self._journal.event("agent_exit", kind=ended["kind"])
        with contextlib.suppress(Refused, GivenUp):
            self._insist_calmly(lambda: self._plane.call("POST", "/v1/exit", ended))

    # --- threads

    def _read_control(self, launched: Launched) -> None:
        while (message := launched.hear()) is not None:
            if message.get("type") in ("turn", "exit"):
                self._mail.claim(Letter(str(message["type"]), message))
        self._mail.claim(Letter("closed"))

    def _beat(self, inputs: Inputs, clock: SolveClock, relay: Relay, watchdog: Watchdog) -> None:
        overdue_since: float | None = None
        wait = 0.0
        while not self._closing.wait(wait):
            usage = watchdog.usage
            body = {
                "held": relay.calls.held(),
                "cpu_s": usage.cpu_s,
                "rss_bytes": usage.rss_bytes,
            }
            now = time.monotonic()
            try:
                self._plane.renew_if_due()
                reply = self._plane.call("POST", "/v1/heartbeat", body, timeout=30.0)
                clock.heard(
                    time.monotonic(), float(reply["remaining_s"]), bool(reply.get("paused"))
                )
                if reply.get("state") == "stop":
                    self._mail.stop(str(reply.get("reason") or "finished"))
            except Refused as error:
                clock.lost()
                if error.is_final:
                    self._mail.stop("superseded", detail=str(error))
            except (Unreachable, KeyError, TypeError, ValueError):
                clock.lost()
            now = time.monotonic()
            if clock.is_paused_too_long(now):
                self._mail.stop("pause_cap")
            remaining = clock.remaining(now)
            if remaining > 0:
                overdue_since = None
                wait = min(inputs.heartbeat_s, remaining + 0.05)
                continue
            # The plane decides; our own count ends a session only if the plane never does.
            overdue_since = overdue_since or now
            if now - overdue_since > 10.0:
                self._mail.stop("own_time_limit")
            wait = min(inputs.heartbeat_s, 1.0)

    # --- after solving

    def _collect(self, inputs: Inputs, snapshots: Snapshots) -> None:
        self._phase("collecting")
        try:
            if self._config.role == "solve":
                self._insist_calmly(lambda: self._plane.open("collect"))
            over_cap = snapshots.final(self._config.give_up_s)
            if over_cap:
                self._report_exit({"kind": "agent_resource", "detail": over_cap, "exit_code": None})
                snapshots.settle(self._config.give_up_s, over_cap)
        except Refused as error:
            self._journal.event("collection_refused", reason=str(error)[:300])
        except GivenUp as error:
            raise Failed("collection_failed", str(error)) from error

    def _insist_calmly(self, action: Any) -> Any:
        return insist(action, self._give_up, self._config.give_up_s)

    def _phase(self, phase: str, **fields: Any) -> None:
        self._journal.state(phase=phase, **fields)
        self._journal.event("phase", phase=phase)


def _thread(name: str, target: Any) -> None:
    threading.Thread(target=target, name=name, daemon=True).start()


def _brief(letter: Letter) -> dict[str, str]:
    if letter.kind == "turn":
        return {}
    return {k: str(letter.fields[k])[:300] for k in ("reason", "detail") if k in letter.fields}


def _exit_of(letter: Letter, oom_kills: int) -> dict[str, Any] | None:
    """Return the AgentExit that a letter stands for; None when the plane knows already."""
    if letter.kind == "stop":
        reason = str(letter.fields["reason"])
        kinds = {
            "agent_resource": "agent_resource",
            "own_time_limit": "time_limit",
            "turn_refused": "agent_error",
        }
        kind = kinds.get(reason)
        detail = str(letter.fields.get("detail", ""))
        return (kind and {"kind": kind, "detail": detail[:500], "exit_code": None}) or None
    fields = letter.fields
    kind = str(fields.get("kind", "agent_error"))
    code = fields.get("exit_code")
    if kind not in EXIT_KINDS:
        kind = "agent_error"
    detail = _text(fields.get("detail"), 500)
    if kind == "agent_error" and oom_kills:
        kind, detail = "agent_resource", f"memory: the kernel killed {oom_kills} processes"
    is_code = isinstance(code, int) and not isinstance(code, bool) and abs(code) < 2**31
    return {"kind": kind, "detail": detail, "exit_code": code if is_code else None}


def _text(value: Any, limit: int) -> str:
    """Return a claim as text that UTF-8 can carry."""
    text = value if isinstance(value, str) else ""
    return text[:limit].encode("utf-8", "replace").decode("utf-8")


def _channel(claim: dict[str, Any]) -> str:
    channel = claim.get("channel")
    return channel if channel in ("native", "callback") else "text"


def _entries(value: Any) -> list[dict[str, Any]]:
    found = []
    for entry in value[:ENTRIES_LIMIT] if isinstance(value, list) else []:
        if isinstance(entry, dict):
            options = entry.get("options")
            found.append(
                {
                    "question": _text(entry.get("question"), 20_000),
                    "header": _text(entry.get("header"), 1_000),
                    "options": [_text(o, 1_000) for o in options[:50]]
                    if isinstance(options, list)
                    else [],
                }
            )
    return found


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
