"""The shim of a box, a pod of role score or exec: programs of one grade, one after the other.

It holds the token and fetches what they read; the container beside it runs them and holds nothing.
"""

from __future__ import annotations

import threading
from typing import Any

from .box_folders import BoxFolders, Folder
from .hosts import Launched, NotIsolated, NotStarted
from .inputs import BadInput, Config
from .journal import Journal
from .plane import GivenUp, Plane, insist
from .pod_host import PodHost
from .pod_site import PodSite
from .session import Failed
from .unpacking import BadArchive
from .wire import Exchange, Refused

EXEC = "exec"
BOXES = ("score", EXEC)
"""The roles of these sessions, and the scopes of their tokens."""
POLL_S = 20
BREATH_S = 0.1
FETCH_S = 300.0
TRIES = 3
_GONE = ("no_job", "no_object")
_KEPT = ("reason", "exit_code", "stdout", "stderr", "duration_s", "detail")


class BoxShim:
    def __init__(
        self,
        config: Config,
        journal: Journal,
        plane: Plane,
        host: PodHost,
        site: PodSite,
    ) -> None:
        self._config, self._journal, self._plane, self._host = config, journal, plane, host
        self._folders, self._late_s = BoxFolders(site.mounts), site.late_s
        self._over = threading.Event()
        self._lost = ""
        self._abandoned = False
        self._launched: Launched | None = None

    def run(self) -> None:
        self._phase("starting")
        self._insist(lambda: self._plane.open(self._config.role))
        try:
            launched = self._launched = self._host.launch_runner(self._over)
            try:
                self._begin(launched)
                self._serve(launched)
            finally:
                end = launched.kill(self._over)
                self._journal.event("sandbox_dead", **end._asdict())
        finally:
            self._over.set()
            self._host.close()
        self._phase("stopped" if self._abandoned else "ended")

    def abandon(self) -> None:
        """Leave at once; called from a signal handler, so no lock is taken here."""
        self._abandoned = True
        threading.Thread(target=self._stop, daemon=True).start()

    @property
    def is_abandoned(self) -> bool:
        return self._abandoned

    def _begin(self, launched: Launched) -> None:
        """Let no program run before the pod's fence was seen to stand."""
        hello = launched.hear()
        if hello is None:
            raise Failed("sandbox_start", "the runner ended before its first word")
        try:
            facts = self._host.check_isolation(hello, self._over)
        except NotStarted as error:
            raise Failed("sandbox_start", str(error)) from error
        except NotIsolated as error:
            raise Failed("isolation_lost", str(error)) from error
        said = {"gate": facts["gate"]} if "gate" in facts else {}
        self._insist(lambda: self._plane.call("POST", "/v1/started", said))
        watch = threading.Thread(
            target=self._host.keep_watch, args=(self._over, self._isolation_lost), daemon=True
        )
        watch.start()
        self._phase("serving")

    def _serve(self, launched: Launched) -> None:
        path = f"/v1/job?wait_s={POLL_S}"
        while not self._over.is_set():
            try:
                reply = self._insist(lambda: self._plane.call("GET", path, timeout=POLL_S + 30))
                if reply.get("job") is None:
                    # A plane that is about to end keeps nobody waiting.
                    self._over.wait(BREATH_S)
                else:
                    self._answer(launched, str(reply["job_id"]), reply["job"])
            except GivenUp:
                break
            except Refused as refusal:
                # The grade is done with its box, or has another one.
                self._journal.event("dismissed", reason=str(refusal)[:300])
                return
        if self._lost:
            raise Failed("isolation_lost", self._lost)
        if not self._abandoned:
            raise Failed("shim_lost", "the plane did not answer for too long")

    def _answer(self, launched: Launched, job_id: str, job: dict[str, Any]) -> None:
        """Run one program and say how it ended; nobody may wait for it any more."""
        problem = self._filled(job_id, job)
        result = _lost(problem) if problem else self._ran(launched, job)
        self._journal.event("program", job=job_id, reason=result["reason"])
        try:
            self._insist(lambda: self._plane.call("POST", f"/v1/job/{job_id}", result))
        except Refused as refusal:
            if refusal.code not in _GONE:
                raise

    def _filled(self, job_id: str, job: dict[str, Any]) -> str:
        """Lay out what the program reads; return why that did not work, else ''."""

        def fetch(number: int) -> Exchange:
            path = f"/v1/job/{job_id}/folders/{number}"
            return self._plane.exchange("GET", path, timeout=FETCH_S)

        problem = ""
        for _ in range(TRIES):
            try:
                folders = [
                    Folder(number, one["at"], one["key"], one.get("below", ""))
                    for number, one in enumerate(job["folders"])
                ]
                self._insist(lambda folders=folders: self._folders.fill(folders, fetch))
            except BadArchive as error:
                problem = f"archive: {error}"  # three times: no accident of the transfer
                continue
            except (BadInput, KeyError, TypeError, OSError) as error:
                return f"{type(error).__name__}: {error}"
            except Refused as refusal:
                if refusal.code not in _GONE:
                    raise
                return str(refusal)
            return ""
        return problem

    def _ran(self, launched: Launched, job: dict[str, Any]) -> dict[str, Any]:
        late = threading.Timer(float(job["timeout_s"]) + self._late_s, launched.strike)
        late.daemon = True
        late.start()
        try:
            launched.tell({"type": "run", **job})
            while (said := launched.hear()) is not None:
                if said.get("type") == "ran":
                    return {key: said[key] for key in _KEPT if key in said}
        finally:
            late.cancel()
        if self._over.is_set():
            return _lost("the box was ended")
        # Whoever ends a pod ends both its containers.
        self._over.wait(self._host.end_delay_s)
        is_own_doing = self._config.role == EXEC and not self._over.is_set()
        kind = "agent_error" if is_own_doing else "shim_lost"
        raise Failed(kind, "the container of the programs ended")

    def _isolation_lost(self, detail: str) -> None:
        self._lost = detail
        self._stop()

    def _stop(self) -> None:
        self._over.set()
        if self._launched is not None:
            self._launched.strike()

    def _insist(self, action: Any) -> Any:
        return insist(action, self._over, self._config.give_up_s)

    def _phase(self, phase: str) -> None:
        self._journal.state(phase=phase)
        self._journal.event("phase", phase=phase)


def _lost(detail: str) -> dict[str, Any]:
    return {"reason": "lost", "detail": detail[:500]}
