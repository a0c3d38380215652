"""The shim: one session from its inputs to its final commit.

`Shim.run` is the whole story. Threads beside the main one: heartbeat, relay, reader of the control
connection, watchdog, snapshots; they leave word in the mailbox, and only the main one decides.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any

from .agents import AGENTS
from .claims import TEXT_LIMIT, clean_channel, clean_entries, clean_text, exit_of
from .clock import SolveClock
from .inputs import Config, Inputs, read_inputs
from .journal import Journal, start_time
from .launching import Launched, NotIsolated, NotStarted, assert_isolated, launch
from .limits import Cgroups, Watchdog, group_name
from .mailbox import Letter, Mailbox
from .places import localised
from .plane import GivenUp, Plane, insist
from .relay import Relay
from .snapshots import Snapshots
from .staging import Deliverables, Staging
from .unpacking import BadArchive
from .wire import Refused, Unreachable

POLL_S = 10
FOLDER_CHECK_S = 2.0
LAST_TRIES_S = 5.0
"""How long a plane is still waited for when its outages are over the pause cap."""


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
        _thread("folder", self._watch_folder)
        inputs = self._take_inputs()
        staging = self._prepare(inputs)
        cgroups = Cgroups(self._config.cgroup, group_name(os.getpid()), inputs.limits)
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
        staging = Staging(self._config.dir, inputs, self._config.runtime.python)
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
        hello = launched.hear()
        if hello is None:
            raise Failed("sandbox_start", "the runner ended before its first word")
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
        paths = staging.paths() if is_bare else {}
        return {
            "type": "start",
            "agent": inputs.scaffold,
            "prompt": localised(inputs.prompt, paths),
            "model": inputs.model,
            "settings": inputs.settings,
            "max_steps": inputs.max_steps,
            "channel": inputs.channel,
            "has_questions": inputs.has_questions,
            "workdir": inputs.workdir,
            "watched": inputs.collect,
            "paths": paths,
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
            ended = exit_of(letter, cgroups.oom_kills())
            if ended is not None:
                self._report_exit(ended)
            return

    def _turn(self, claim: dict[str, Any], deliverables: Deliverables) -> dict[str, Any] | None:
        """Return the plane's reply to one turn; None when a stop came first."""
        self._turn_no += 1
        number = self._turn_no
        body = {
            "turn_no": number,
            "channel": clean_channel(claim),
            "text": clean_text(claim.get("text"), TEXT_LIMIT),
            "entries": clean_entries(claim.get("entries")),
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
            self._mail.stop("pause_cap")  # unless another stop came first
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

    def _watch_folder(self) -> None:
        """Without its folder a session has no owner any more: nobody could find it again."""
        state = os.path.join(self._config.dir, "state.json")
        folder = os.stat(self._config.dir)
        while not self._closing.wait(FOLDER_CHECK_S):
            try:
                is_there = os.path.samestat(os.stat(self._config.dir), folder)
            except OSError:
                is_there = False
            if not is_there or not os.path.exists(state):
                self.abandon()
                return

    def _beat(self, inputs: Inputs, clock: SolveClock, relay: Relay, watchdog: Watchdog) -> None:
        overdue_since: float | None = None
        capped_since: float | None = None
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
            if not (clock.is_away and clock.is_paused_too_long(now)):
                capped_since = None
            elif now - (capped_since := capped_since or now) > LAST_TRIES_S:
                self._give_up.set()
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
