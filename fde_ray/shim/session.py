"""The shim: one session from its inputs to its final commit.

`Shim.run` is the whole story; where the agent lives is its host's affair (`hosts`). Threads beside
the main one: heartbeat, relay, reader of the control connection, watchdog, snapshots, watch over
the isolation; they leave word in the mailbox, and only the main one decides.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any

from .agents import AGENTS
from .beating import Heart
from .claims import clean_claim, exit_of
from .clock import SolveClock
from .hosts import End, Host, Launched, NotIsolated, NotStarted
from .inputs import Config, Inputs, read_inputs
from .journal import Journal
from .limits import Watchdog
from .mailbox import Letter, Mailbox
from .places import localised
from .plane import GivenUp, Plane, insist
from .relay import Relay
from .snapshots import Snapshots
from .staging import Deliverables, Staging
from .unpacking import BadArchive
from .wire import Refused

POLL_S = 10
FOLDER_CHECK_S = 2.0


class Failed(Exception):
    """The session cannot go on for a reason of ours; `kind` is one of the failure table."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail[:500]


class Shim:
    def __init__(self, config: Config, journal: Journal, plane: Plane, host: Host) -> None:
        self._config, self._journal, self._plane, self._host = config, journal, plane, host
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
        self._host.open(inputs)
        try:
            relay = self._open_relay(inputs)
            launched = self._launch(inputs)
            self._mail.on_stop = launched.strike
            snapshots = Snapshots(
                self._plane, self._journal, inputs, staging.collected, self._give_up
            )
            try:
                self._solve(inputs, staging, launched, relay, snapshots)
            except BaseException:
                self._give_up.set()  # nothing will be collected
                raise
            finally:
                end = launched.kill(self._give_up)
                self._journal.event("sandbox_dead", **end._asdict())
            if not self._abandoned:
                self._collect(inputs, snapshots, end)
        finally:
            self._closing.set()
            self._host.close()
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
        staging = self._host.staging(inputs)
        for is_last in (False, False, True):
            try:
                self._insist(lambda: staging.prepare(self._plane))
                break
            except BadArchive as error:
                if is_last:  # the same fault three times is no accident of the transfer
                    raise Failed("sandbox_start", f"archive: {error}") from error
        self._phase("prepared")
        return staging

    def _open_relay(self, inputs: Inputs) -> Relay:
        relay = Relay(
            self._host.relay_listener(),
            self._plane,
            self._mail.over,
            evaluate=inputs.evaluate,
            evaluate_limit=min(inputs.limits.archive_bytes, self._host.room_bytes),
            room_bytes=self._host.room_bytes,
            log=self._journal.event,
        )
        _thread("relay", lambda: relay.serve_forever(poll_interval=0.5))
        return relay

    def _launch(self, inputs: Inputs) -> Launched:
        try:
            launched = self._host.launch(inputs, self._mail.over)
        except (NotStarted, OSError) as error:
            raise Failed("sandbox_start", str(error)) from error
        self._phase("sandboxed", **launched.facts())
        return launched

    def _check_isolation(self, launched: Launched) -> dict[str, Any]:
        hello = launched.hear()
        if hello is None:
            raise Failed("sandbox_start", "the runner ended before its first word")
        try:
            facts = self._host.check_isolation(hello, self._mail.over)
        except NotStarted as error:
            raise Failed("sandbox_start", str(error)) from error
        except NotIsolated as error:
            raise Failed("isolation_lost", str(error)) from error
        if facts:
            self._journal.event("isolated", **facts)
        return facts

    def _insist(self, action: Any) -> Any:
        return insist(action, self._mail.over, self._config.give_up_s)

    # --- solving

    def _solve(
        self,
        inputs: Inputs,
        staging: Staging,
        launched: Launched,
        relay: Relay,
        snapshots: Snapshots,
    ) -> None:
        facts = self._check_isolation(launched)
        agent = AGENTS[inputs.scaffold]
        deliverables = Deliverables(staging.collected, agent.state_dirs, inputs.exclude)
        watchdog = Watchdog(
            self._host.meter(),
            inputs.limits,
            staging.collected,
            lambda detail: self._mail.stop("agent_resource", detail=detail),
        )
        said = {"gate": facts["gate"]} if "gate" in facts else {}
        self._insist(lambda: self._plane.call("POST", "/v1/started", said))
        self._note_turn(0)
        heart = Heart(
            self._plane,
            self._mail,
            SolveClock(inputs.limits.time_s, inputs.limits.pause_cap_s, time.monotonic()),
            calls=relay.calls,
            usage=lambda: watchdog.usage,
            give_up=self._give_up,
            every_s=inputs.heartbeat_s,
        )
        self._phase("solving")
        _thread("control", lambda: self._read_control(launched))
        _thread("heartbeat", lambda: heart.run(self._closing))
        _thread("snapshots", lambda: snapshots.run(self._mail.over, inputs.snapshot_s))
        _thread("isolation", lambda: self._host.keep_watch(self._mail.over, self._lost))
        watchdog.start()
        # Last: once the agent is at work, the pod may have no room for another thread.
        launched.tell(self._start_message(inputs))
        try:
            self._converse(launched, deliverables)
        finally:
            self._mail.stop("finished")
            watchdog.close()

    def _lost(self, detail: str) -> None:
        self._mail.stop("isolation_lost", detail=detail)

    def _start_message(self, inputs: Inputs) -> dict[str, Any]:
        paths = self._host.paths()
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
            "evaluate": inputs.evaluate,
            "paths": paths,
            "memory_bytes": inputs.limits.memory_bytes,
            "disk_bytes": inputs.limits.disk_bytes,
            "processes": inputs.limits.processes,
        }

    def _converse(self, launched: Launched, deliverables: Deliverables) -> None:
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
            self._end(letter)
            return

    def _end(self, letter: Letter) -> None:
        """Tell the plane of an end that it does not know of."""
        if letter.fields.get("reason") == "isolation_lost":
            raise Failed("isolation_lost", str(letter.fields["detail"]))
        # Whoever ends a pod ends both its containers, and the agent's may be the faster one.
        if letter.kind == "closed" and self._give_up.wait(self._host.end_delay_s):
            return
        ended = exit_of(letter, self._host.oom_kills())
        if ended is not None:
            self._report_exit(ended)

    def _turn(self, claim: dict[str, Any], deliverables: Deliverables) -> dict[str, Any] | None:
        """Return the plane's reply to one turn; None when a stop came first."""
        self._turn_no += 1
        number = self._turn_no
        body = {
            "turn_no": number,
            **{key: claim[key] for key in ("channel", "text", "entries")},
            "has_deliverable": deliverables.exist(),
        }
        try:
            self._note_turn(number)
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

    def _note_turn(self, number: int) -> None:
        """Let it be known, whatever is lost, that no turn after this one has had a reply."""
        if self._host.notes_turns and self._config.role == "solve":
            self._insist(lambda: self._plane.note_turn(number))

    def _report_exit(self, ended: dict[str, Any]) -> None:
        self._journal.event("agent_exit", kind=ended["kind"])
        with contextlib.suppress(Refused, GivenUp):
            self._insist_calmly(lambda: self._plane.call("POST", "/v1/exit", ended))

    # --- threads

    def _read_control(self, launched: Launched) -> None:
        while (message := launched.hear()) is not None:
            if (claim := clean_claim(message)) is not None:
                self._mail.claim(Letter(claim["type"], claim))
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

    # --- after solving

    def _collect(self, inputs: Inputs, snapshots: Snapshots, end: End) -> None:
        self._phase("collecting")
        patience_s = self._config.give_up_s
        try:
            if self._config.role == "solve":
                self._insist_calmly(lambda: self._plane.open("collect"))
            if not end.is_proven:
                self._collect_unproven(snapshots, patience_s)
                return
            over_cap = snapshots.final(patience_s)
            if over_cap:
                self._report_exit({"kind": "agent_resource", "detail": over_cap, "exit_code": None})
                snapshots.settle(patience_s, over_cap)
        except Refused as error:
            self._journal.event("collection_refused", reason=str(error)[:300])
        except GivenUp as error:
            raise Failed("collection_failed", str(error)) from error

    def _collect_unproven(self, snapshots: Snapshots, patience_s: float) -> None:
        """What may still be written to is not collected; without a snapshot nothing can count."""
        if not snapshots.promote(patience_s):
            reason = "the agent's container could not be shown to be dead, and no snapshot counts"
            raise Failed("collection_failed", reason)

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
