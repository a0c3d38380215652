"""HTTP/1.1 over a UNIX socket or TCP, and how the plane says no."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Mapping
from typing import Any

from .sockets import connect_unix

REPLY_LIMIT = 64 << 20
Body = bytes | Iterable[bytes] | None


class Unreachable(Exception):
    """No usable reply: no connection, a broken one, or a reply that is not HTTP."""


class Refused(Exception):
    """The plane said no. `is_final`: asking again cannot help."""

    def __init__(
        self, status: int, fault: str, code: str, reason: str, retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{status} {fault} {code}: {reason}")
        self.status, self.fault, self.code, self.reason = status, fault, code, reason
        self.retry_after_s = retry_after_s
        self.said = b""
        """The plane's own words, in the dialect of the call; empty = it did not say it itself."""

    @property
    def is_final(self) -> bool:
        return self.fault in ("agent", "budget")

    @classmethod
    def of(cls, status: int, body: bytes) -> Refused:
        """Read a refusal; a reply in any other shape counts as trouble of ours."""
        try:
            error = json.loads(body)["error"]
            fault = str(error["fault"])
            after = error.get("retry_after_s")
            refused = cls(
                status,
                fault if fault in ("agent", "budget", "provider") else "ours",
                str(error.get("fde_code", error.get("code", "")))[:100],
                str(error.get("reason", ""))[:500],
                float(after) if isinstance(after, (int, float)) else None,
            )
            refused.said = body
            return refused
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls(status, "ours", "unreadable", f"HTTP {status} without a refusal in it")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = connect_unix(self._path, self.timeout)


def connection(address: str, timeout: float) -> http.client.HTTPConnection:
    """Return a connection, not yet opened. address: `unix:/path` or `http://host:port`."""
    if address.startswith("unix:"):
        return _UnixConnection(address[5:], timeout)
    return http.client.HTTPConnection(address.removeprefix("http://").rstrip("/"), timeout=timeout)


class Exchange:
    """One request and its reply; a context, since the reply may be read piece by piece."""

    def __init__(
        self,
        address: str,
        method: str,
        path: str,
        body: Body = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> None:
        self._conn = connection(address, timeout)
        try:
            self._conn.request(
                method,
                path,
                body,
                dict(headers or {}),
                encode_chunked=body is not None and not isinstance(body, bytes),
            )
            self._reply = self._conn.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self._conn.close()
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        except BaseException:
            self._conn.close()
            raise

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self._conn.close()

    @property
    def status(self) -> int:
        return self._reply.status

    @property
    def content_type(self) -> str:
        return self._reply.getheader("content-type") or "application/json"

    def set_timeout(self, timeout: float) -> None:
        if self._conn.sock is not None:
            self._conn.sock.settimeout(timeout)

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes (-1: the whole reply, up to a limit); b"" at the end."""
        try:
            if size >= 0:
                return self._reply.read(size)
            data = self._reply.read(REPLY_LIMIT + 1)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        if len(data) > REPLY_LIMIT:
            raise Unreachable("the reply is too large")
        return data

    def read_some(self) -> bytes:
        """Read what is there, at least one byte; b"" at the end."""
        try:
            return self._reply.read1(65536)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error

    def refusal(self) -> Refused:
        return Refused.of(self.status, self.read())


def json_bytes(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
