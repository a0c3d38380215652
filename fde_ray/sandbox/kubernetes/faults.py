"""What an API server says when it does not do as asked, and what that means for a caller."""

from __future__ import annotations

import json
from collections.abc import Mapping

from fde_ray.model.errors import SandboxError, shortened

TRANSIENT = frozenset({500, 502, 503, 504})
MAX_RETRY_AFTER_S = 120.0


class ApiFault(SandboxError):
    """status: of the reply; None = there was none. reason: a word such as `AlreadyExists`."""

    def __init__(
        self,
        detail: str,
        *,
        status: int | None = None,
        reason: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        self.status, self.reason, self.retry_after_s = status, reason, retry_after_s
        super().__init__(detail)

    @property
    def is_absence(self) -> bool:
        return self.status == 404

    @property
    def is_expired(self) -> bool:
        """The version or the page that was asked for is too old."""
        return self.status == 410

    @property
    def is_taken(self) -> bool:
        """Something of that name is there."""
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def is_conflict(self) -> bool:
        """Others changed something at the same time (a quota's count), or the UID is another."""
        return self.status == 409 and self.reason != "AlreadyExists"

    @property
    def is_full(self) -> bool:
        """A quota of the namespace is used up."""
        return self.status == 403 and "exceeded quota" in self.detail

    @property
    def is_transient(self) -> bool:
        return self.status is None or self.status in TRANSIENT or self.status == 429


def fault_of(status: int, headers: Mapping[str, str], body: bytes) -> ApiFault:
    """Return what a reply says; its body may be anything."""
    try:
        said = json.loads(body)
    except ValueError:
        said = {}
    said = said if isinstance(said, dict) else {}
    message = str(said.get("message") or body[:300].decode("utf-8", "replace"))
    return ApiFault(
        f"the API server says {status}: {shortened(message, 300)}",
        status=status,
        reason=str(said.get("reason") or ""),
        retry_after_s=_retry_after(headers, said),
    )


def _retry_after(headers: Mapping[str, str], said: Mapping[str, object]) -> float | None:
    details = said.get("details")
    named = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    for value in (headers.get("Retry-After"), named):
        try:
            seconds = float(value)  # type: ignore[arg-type]  # None and text are caught
        except (TypeError, ValueError):
            continue
        if seconds >= 0:  # not NaN
            return min(seconds, MAX_RETRY_AFTER_S)
    return None
