"""Snapshots of the workspace while it is worked in, and the one that ends the session."""

from __future__ import annotations

import os
import threading
from typing import Any

from .collecting import Manifest, OverCap, PartStream, collect, tree_hash
from .inputs import Inputs
from .journal import Journal
from .plane import GivenUp, Plane, insist
from .wire import Refused, Unreachable

FINAL = "final"
EMPTY = "empty"
"""Not the final one's name: the plane may have taken parts of that before it said no."""


class Snapshots:
    def __init__(
        self,
        plane: Plane,
        journal: Journal,
        inputs: Inputs,
        root: str,
        give_up: threading.Event,
    ) -> None:
        self._plane, self._journal, self._inputs, self._root = plane, journal, inputs, root
        self._give_up = give_up
        self._exclude = [os.fsencode(name) for name in inputs.exclude]
        self._last: dict[str, Any] | None = None
        # One snapshot at a time: a running one must be over before the final one begins.
        self._lock = threading.Lock()

    def run(self, over: threading.Event, every_s: float) -> None:
        """Take snapshots until `over`; one that fails is skipped."""
        number = 0
        while not over.wait(every_s):
            number += 1
            try:
                with self._lock:
                    self._take(f"s{number}", final=False, over=over, patience_s=every_s)
            except (OverCap, Refused, GivenUp, Unreachable, OSError) as error:
                self._journal.event("snapshot_skipped", number=number, reason=str(error)[:200])

    def final(self, patience_s: float) -> str:
        """Commit the dead sandbox's workspace; return why not when it is too large, else ''."""
        with self._lock:
            try:
                self._take(FINAL, final=True, over=self._give_up, patience_s=patience_s)
            except OverCap as error:
                return f"archive: {error}"
        return ""

    def promote(self, patience_s: float) -> bool:
        """Let the last snapshot count; return False when there is none or it is not taken."""
        with self._lock:
            if self._last is None:
                return False
            self._send_events()
            try:
                self._commit(self._last | {"final": True}, self._give_up, patience_s)
            except Refused as error:
                self._journal.event("snapshot_not_final", reason=str(error)[:200])
                return False
            return True

    def settle(self, patience_s: float, reason: str) -> None:
        """Let the last snapshot count, else an empty tree."""
        if self.promote(patience_s):
            return
        parts = PartStream(
            lambda seq, data, sha: self._put(EMPTY, self._give_up, patience_s, seq, data, sha)
        )
        parts.write(bytes(1024))  # an empty tar
        parts.close()
        manifest = Manifest(tuple(parts.parts), tree_hash({}), 0, 0, (reason[:300],))
        self._commit(manifest.commit(EMPTY, final=True), self._give_up, patience_s)

    def _take(self, name: str, *, final: bool, over: threading.Event, patience_s: float) -> None:
        manifest = collect(
            self._root,
            lambda seq, data, sha: self._put(name, over, patience_s, seq, data, sha),
            cap_bytes=self._inputs.limits.archive_bytes,
            exclude=self._exclude,
            mend=final,
        )
        if final:
            self._send_events()
        self._commit(manifest.commit(name, final=final), over, patience_s)

    def _put(
        self,
        name: str,
        over: threading.Event,
        patience_s: float,
        seq: int,
        data: bytes,
        sha: str,
    ) -> None:
        def put() -> None:
            kind = "application/octet-stream"
            path = f"/v1/parts/{name}/{seq}?sha256={sha}"
            with self._plane.exchange("PUT", path, data, content_type=kind, timeout=120.0) as reply:
                reply.read()

        try:
            insist(put, over, patience_s)
        except Refused as error:
            if error.code == "archive_too_large":
                raise OverCap(error.reason) from error
            raise

    def _commit(self, body: dict[str, Any], over: threading.Event, patience_s: float) -> None:
        insist(
            lambda: self._plane.call("POST", "/v1/commit", body, timeout=120.0), over, patience_s
        )
        self._last = body
        self._journal.event(
            "committed", snapshot=body["snapshot"], files=body["files"], final=body["final"]
        )

    def _send_events(self) -> None:
        """Send our own event log on; it is a claim, so a refusal changes nothing."""
        try:
            seq, data = self._journal.unsent()
            if data:
                kind = "application/gzip"
                with self._plane.exchange(
                    "PUT", f"/v1/events/{seq}", data, content_type=kind, timeout=60.0
                ) as reply:
                    reply.read()
                self._journal.sent()
        except (Refused, Unreachable):
            self._journal.event("events_not_sent")
