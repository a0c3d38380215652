"""The one table from an error to what the wire says of it."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from fde_ray.model.errors import ProviderError, Refusal, StoreError, Superseded, shortened
from fde_ray.model.failures import FailureKind, Fault
from fde_ray.store.errors import Conflict, KeyInvalid, RowMissing

STORE_RETRY_AFTER_S = 2.0
_CALLERS_MISTAKE = (400, 413, 422)


def as_refusal(error: Exception) -> Refusal:
    """Return the refusal that tells a shim of `error`; unknown errors are ours, without detail."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ProviderError):
        return _provider_refusal(error)
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return Refusal(422, Fault.AGENT, f"{where}: {first['msg']}", code="bad_request")
    if isinstance(error, Conflict):
        return Refusal(409, Fault.AGENT, str(error), code="conflict")
    if isinstance(error, RowMissing):
        return Refusal(404, Fault.AGENT, error.detail, code="unknown")
    if isinstance(error, KeyInvalid):
        return Refusal(400, Fault.AGENT, "a name is not allowed", code="bad_request")
    if isinstance(error, Superseded):
        return Refusal(403, Fault.AGENT, "the session is over", code="not_live")
    if isinstance(error, StoreError):
        reason, retry = "the store cannot be reached", STORE_RETRY_AFTER_S
        return Refusal(503, Fault.OURS, reason, code="store_unavailable", retry_after_s=retry)
    return Refusal(500, Fault.OURS, "an internal error", code="internal", retry_after_s=5.0)


def _provider_refusal(error: ProviderError) -> Refusal:
    if error.kind is not FailureKind.PROVIDER_REJECTED:
        status = 429 if error.status == 429 else 503
        return Refusal(
            status,
            Fault.PROVIDER,
            error.detail,
            code=error.kind.value,
            retry_after_s=error.retry_after_s,
            answer=error.answer,
        )
    # A request that the provider cannot digest is its sender's to mend (a context that is too
    # long); a key or name that it does not know is the operator's.
    fault = Fault.AGENT if error.status in _CALLERS_MISTAKE else Fault.OURS
    status = 400 if fault is Fault.AGENT else 502
    return Refusal(status, fault, error.detail, code=error.kind.value, answer=error.answer)


def error_json(refusal: Refusal) -> dict[str, Any]:
    return {
        "error": {
            "fault": refusal.fault.value,
            "code": refusal.code,
            "reason": shortened(refusal.reason),
            "message": shortened(refusal.reason),
            "retry_after_s": refusal.retry_after_s,
        }
    }
