"""The one place where errors of botocore become errors of this project.

S3Trouble (a StoreError)   one failed call, with its kind: what to do next hangs on it
StoreUnfit (a UserError)   the store cannot be used, found at start: one sentence that says why
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from fde_ray.model.errors import StoreError, UserError

FOREIGN = (boto.BotoCoreError, boto.ClientError, ResponseParserError, OSError)
"""All that a call of botocore, or reading its body, is known to raise."""
SKEW_LIMIT_S = 600.0
"""S3 refuses requests whose time is 15 minutes off; beyond this the clock is to blame."""
LONGEST_RETRY_AFTER_S = 60.0


class Trouble(StrEnum):
    MISSING = "missing"
    NO_UPLOAD = "no_upload"
    """The multipart upload is gone: completed or aborted."""
    EXISTS = "exists"
    CONFLICT = "conflict"
    """Another write to the same key is under way: nothing is known, ask again."""
    BUSY = "busy"
    TRANSIENT = "transient"
    """The request may have worked all the same."""
    CORRUPT = "corrupt"
    EMPTY_RANGE = "empty_range"
    CHANGED = "changed"
    SKEWED = "skewed"
    DENIED = "denied"
    NO_BUCKET = "no_bucket"
    UNSUPPORTED = "unsupported"
    OTHER = "other"


RETRYABLE = frozenset({Trouble.CONFLICT, Trouble.BUSY, Trouble.TRANSIENT, Trouble.CORRUPT})


class S3Trouble(StoreError):
    """retry_after_s: what the store asked for; None = it did not say."""

    def __init__(self, kind: Trouble, detail: str, retry_after_s: float | None = None) -> None:
        self.trouble, self.retry_after_s = kind, retry_after_s
        super().__init__(detail)


class StoreUnfit(UserError):
    """The object store lacks what the project needs."""


_BY_CODE = {
    "NoSuchKey": Trouble.MISSING,
    "NoSuchUpload": Trouble.NO_UPLOAD,
    "NoSuchBucket": Trouble.NO_BUCKET,
    "PreconditionFailed": Trouble.EXISTS,
    "ConditionalRequestConflict": Trouble.CONFLICT,
    "OperationAborted": Trouble.CONFLICT,
    "SlowDown": Trouble.BUSY,
    "SlowDownRead": Trouble.BUSY,
    "SlowDownWrite": Trouble.BUSY,
    "RequestLimitExceeded": Trouble.BUSY,
    "Throttling": Trouble.BUSY,
    "ThrottlingException": Trouble.BUSY,
    "TooManyRequests": Trouble.BUSY,
    "RequestTimeout": Trouble.TRANSIENT,
    "InternalError": Trouble.TRANSIENT,
    "IncompleteBody": Trouble.TRANSIENT,
    "BadDigest": Trouble.CORRUPT,
    "XAmzContentSHA256Mismatch": Trouble.CORRUPT,
    "ExpiredToken": Trouble.DENIED,
    "InvalidToken": Trouble.DENIED,
    "RequestTimeTooSkewed": Trouble.SKEWED,
    "InvalidRange": Trouble.EMPTY_RANGE,
    "NotImplemented": Trouble.UNSUPPORTED,
}
_BY_STATUS = {
    401: Trouble.DENIED,
    403: Trouble.DENIED,
    404: Trouble.MISSING,
    408: Trouble.TRANSIENT,
    409: Trouble.CONFLICT,
    412: Trouble.EXISTS,
    416: Trouble.EMPTY_RANGE,
    429: Trouble.BUSY,
    500: Trouble.TRANSIENT,
    501: Trouble.UNSUPPORTED,
    502: Trouble.TRANSIENT,
    503: Trouble.BUSY,
    504: Trouble.TRANSIENT,
}
_LASTING = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.ParamValidationError,
    boto.CredentialRetrievalError,
    boto.NoRegionError,
)
_KEYLIKE = re.compile(
    r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b|(?i:(?:signature|credential|token|secret)\w*\s*[=:]\s*)\S+"
)


def translated(error: Exception, what: str, *, now: float, secrets: Collection[str]) -> S3Trouble:
    """Return `error` as trouble with `what` (such as "object k"); `now` is this host's time.

    The cause is chained unless its text holds a secret.
    """
    if isinstance(error, boto.ClientError):
        made = _of_reply(error.response, what, now, secrets)
    elif isinstance(error, boto.EndpointConnectionError):
        text = f"no answer from {error.kwargs.get('endpoint_url')}; check `endpoint_url`"
        made = S3Trouble(Trouble.TRANSIENT, f"{what}: {masked(text, secrets)}")
    elif isinstance(error, boto.NoCredentialsError):
        text = "no keys found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        made = S3Trouble(Trouble.DENIED, f"{what}: {text}")
    else:
        text = masked(f"{type(error).__name__}: {error}", secrets)
        lasting = isinstance(error, _LASTING)
        made = S3Trouble(Trouble.DENIED if lasting else Trouble.TRANSIENT, f"{what}: {text}")
    made.__cause__ = error if masked(str(error), secrets) == str(error) else None
    made.__suppress_context__ = True
    return made


def masked(text: str, secrets: Collection[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return _KEYLIKE.sub("***", text)


def _of_reply(
    response: Mapping[str, Any], what: str, now: float, secrets: Collection[str]
) -> S3Trouble:
    said, about = response.get("Error", {}), response.get("ResponseMetadata", {})
    code, status = str(said.get("Code", "")), int(about.get("HTTPStatusCode") or 0)
    headers = about.get("HTTPHeaders", {})
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status) or Trouble.OTHER
    text = masked(f"{code} {said.get('Message', '')}".strip(), secrets)
    detail = f"{what}: S3 answered {status} {text}"
    skew = skew_s(headers, now)
    # The reply to a HEAD has no code: only the status says that access is refused.
    if kind in {Trouble.SKEWED, Trouble.DENIED} and skew and abs(skew) >= SKEW_LIMIT_S:
        kind, detail = Trouble.SKEWED, f"{what}: {skew_sentence(skew)}"
    elif kind is Trouble.SKEWED:
        # The clock is right: the request was under way too long. A new one has a new time.
        kind = Trouble.TRANSIENT
    return S3Trouble(kind, detail, _retry_after_s(headers))


def skew_s(headers: Mapping[str, str], now: float) -> float | None:
    """Return by how much this host's clock is ahead of the reply's Date; None = no such header."""
    try:
        return now - parsedate_to_datetime(headers["date"]).timestamp()
    except (KeyError, ValueError, TypeError):
        return None


def skew_sentence(skew: float) -> str:
    way = "ahead of" if skew > 0 else "behind"
    return (
        f"the clock of this machine is {abs(skew) / 60:.0f} minutes {way} the store's,"
        " and S3 refuses requests that are 15 minutes off: set the clock"
    )


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    try:
        seconds = float(headers["retry-after"])
    except (KeyError, ValueError):
        return None
    return min(seconds, LONGEST_RETRY_AFTER_S) if seconds >= 0 else None
