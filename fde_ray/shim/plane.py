"""The shim's side of the plane: the token, single calls, and calls that wait out an outage."""

from __future__ import annotations

import gzip
import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from .wire import Body, Exchange, Refused, Unreachable, json_bytes

FIRST_DELAY_S, LAST_DELAY_S = 0.1, 5.0
BULK = ("/v1/parts/", "/v1/commit", "/v1/events/", "/v1/archives/")
"""Goes to the ingest where there is one."""


class GivenUp(Exception):
    """The call was not served before it lost its point."""


def next_delay(delay: float, refusal: Refused | None) -> float:
    """Return the wait before the next try, in seconds."""
    asked = refusal.retry_after_s if refusal is not None else None
    return min(max(delay, asked or 0.0), 60.0)


class Plane:
    """Holds the token of one session. Safe to use from several threads."""

    def __init__(
        self,
        address: str,
        subject: str,
        secret: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address, self._subject, self._secret = address, subject, secret
        self._monotonic = monotonic
        # One for life: a plane that hears another one knows that another shim came after this.
        self._nonce = uuid.uuid4().hex
        # Guards the fields of the token; never held during a request of another kind.
        self._lock = threading.Lock()
        self._scope = ""
        self._token = ""
        self._renew_at = 0.0
        self._serial: int | None = None
        self._ingest = address

    def __repr__(self) -> str:
        return f"Plane({self._address!r}, {self._subject!r})"

    # --- token

    def open(self, scope: str) -> None:
        """Take a token of another scope. One try."""
        with self._lock:
            self._scope = scope
            self._exchange()

    def renew_if_due(self) -> None:
        with self._lock:
            if self._token and self._monotonic() >= self._renew_at:
                self._take(self._post("/v1/token/renew", {}, self._token))

    def _exchange(self) -> None:
        body: dict[str, Any] = {
            "subject": self._subject,
            "secret": self._secret,
            "nonce": self._nonce,
            "scope": self._scope,
        }
        if self._serial is not None:
            body["serial"] = self._serial
        self._take(self._post("/v1/token", body, ""))

    def _take(self, reply: dict[str, Any]) -> None:
        self._token = str(reply["token"])
        self._serial = reply.get("serial")
        self._ingest = str(reply.get("ingest") or self._address)
        self._renew_at = self._monotonic() + float(reply["expires_in_s"]) * 0.6

    def _reopen(self, stale: str) -> str:
        """Replace a token that the plane no longer takes."""
        with self._lock:
            if self._token == stale:
                self._exchange()
            return self._token

    def _post(self, path: str, body: dict[str, Any], token: str) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        with Exchange(self._address, "POST", path, json_bytes(body), headers, 30.0) as reply:
            if reply.status >= 400:
                raise reply.refusal()
            return _object(reply.read())

    # --- calls

    def exchange(
        self,
        method: str,
        path: str,
        body: Body = None,
        *,
        content_type: str = "application/json",
        call_id: str = "",
        headers: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Exchange:
        """Send one request and return its open reply; a status of 400 or more raises Refused.

        A token that is no longer taken is replaced once, and so is the address of the ingest.
        body: an iterable is sent chunked and cannot be sent twice, so it gets no second try.
        """
        token = self._token
        for is_last in (False, True):
            sent = {**(headers or {}), "authorization": f"Bearer {token}"}
            sent["content-type"] = content_type
            if call_id:
                sent["x-fde-call-id"] = call_id
            address = self._ingest if path.startswith(BULK) else self._address
            reply = Exchange(address, method, path, body, sent, timeout)
            if reply.status < 400:
                return reply
            with reply:
                refusal = reply.refusal()
            can_repeat = body is None or isinstance(body, bytes)
            is_stale = refusal.status == 401 or refusal.code == "elsewhere"
            if not is_stale or is_last or not can_repeat:
                raise refusal
            token = self._reopen(token)
        raise AssertionError("unreachable")

    def answers(self, timeout: float = 5.0) -> bool:
        """Return whether the plane can be reached, whatever it says."""
        try:
            with self.exchange("GET", "/v1/inputs", timeout=timeout):
                return True
        except Refused:
            return True
        except Unreachable:
            return False

    def note_turn(self, number: int) -> None:
        """Have the bucket keep that this turn is about to be posted; 0 = the agent may begin. One
        try."""
        line = json_bytes({"v": 1, "event": "turn", "turn_no": number}) + b"\n"
        data = gzip.compress(line, mtime=0)
        place = f"/v1/events/{number}"
        with self.exchange("PUT", place, data, content_type="application/gzip") as reply:
            reply.read()

    def call(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout: float = 60.0
    ) -> dict[str, Any]:
        """Send JSON, return JSON. One try."""
        data = None if body is None else json_bytes(body)
        with self.exchange(method, path, data, timeout=timeout) as reply:
            return _object(reply.read())


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data or b"{}")
    except ValueError as error:
        raise Unreachable("the reply is not JSON") from error
    if not isinstance(value, dict):
        raise Unreachable("the reply is not a JSON object")
    return value


def insist(
    action: Callable[[], Any], over: threading.Event, deadline_s: float, *, final: bool = True
) -> Any:
    """Repeat `action` until it is served; return its value.

    Raises Refused when the refusal is final, GivenUp when `over` is set or the time is up.
    `final=False` retries final refusals, too.
    """
    delay = FIRST_DELAY_S
    end = time.monotonic() + deadline_s
    while True:
        refusal: Refused | None = None
        try:
            return action()
        except Refused as error:
            if error.is_final and final:
                raise
            # Without its frames, which would hold this one, and with it what was sent.
            refusal, reason = error.with_traceback(None), str(error)
        except Unreachable as error:
            reason = str(error)
        wait = next_delay(delay, refusal)
        if time.monotonic() + wait > end or over.wait(wait):
            raise GivenUp(reason)
        delay = min(delay * 2, LAST_DELAY_S)
