"""One tree of errors.

FdeRayError
├── UserError            a person can mend it: one sentence that says what to do, exit code 2
│   ├── SpecError        a SweepSpec or Profile is wrong (file and line)
│   └── CaseError        a case package is wrong (file and fault)
├── RunFailure           something of a run failed; carries a kind of the failure table
│   ├── ProviderError    a model provider failed (retry_after_s when it said so)
│   ├── SandboxError     a sandbox did not start or was lost
│   ├── EvaluatorFault   the case evaluator failed; never a score
│   └── StoreError       the run store or the object store failed
├── Refusal              the gateway says no; carries whose fault it is
└── Superseded           another owner holds the row now; drop the work, write nothing
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .failures import FAILURES, FailureKind, FailureRule, Fault

TEXT_LIMIT = 500


def shortened(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return foreign text cut to `limit` characters, without control characters."""
    clean = "".join(c if c.isprintable() else " " for c in text)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


class FdeRayError(Exception):
    """Base of everything this package raises on purpose."""


class UserError(FdeRayError):
    exit_code = 2


class SpecError(UserError):
    """A document of the user is wrong. `line` counts from 1; None when the file has none."""

    def __init__(self, message: str, *, path: str = "", line: int | None = None) -> None:
        self.path, self.line, self.reason = path, line, message
        where = f"{path}:{line}: " if path and line else f"{path}: " if path else ""
        super().__init__(where + message)


class CaseError(UserError):
    """A case package is wrong."""

    def __init__(self, path: str | Path, reason: str) -> None:
        self.path, self.reason = str(path), shortened(reason)
        super().__init__(f"{self.path}: {self.reason}")


class RunFailure(FdeRayError):
    """A stage of a run failed for a listed kind; `detail` is foreign text, cut short."""

    def __init__(self, kind: FailureKind, detail: str = "") -> None:
        self.kind, self.detail = kind, shortened(detail)
        super().__init__(f"{kind.value}: {self.detail or self.rule.text}")

    @property
    def rule(self) -> FailureRule:
        return FAILURES[self.kind]


class ProviderError(RunFailure):
    """`uncertain`: the request was sent, and the provider may have worked and charged for it.

    answer: what it said of the error, for a caller of the same dialect.
    """

    def __init__(
        self,
        detail: str,
        *,
        kind: FailureKind = FailureKind.PROVIDER_UNAVAILABLE,
        status: int | None = None,
        retry_after_s: float | None = None,
        uncertain: bool = False,
        answer: dict[str, Any] | None = None,
    ) -> None:
        self.status, self.retry_after_s, self.uncertain = status, retry_after_s, uncertain
        self.answer = answer
        super().__init__(kind, detail)


class SandboxError(RunFailure):
    def __init__(self, detail: str, kind: FailureKind = FailureKind.SANDBOX_START) -> None:
        super().__init__(kind, detail)


class EvaluatorFault(RunFailure):
    pass


class StoreError(RunFailure):
    def __init__(self, detail: str) -> None:
        super().__init__(FailureKind.STORE_UNAVAILABLE, detail)


class Refusal(FdeRayError):
    """The gateway refuses a request. status: HTTP status; fault: whose trouble it is.

    answer: what a provider said of it, in the dialect of the caller.
    """

    def __init__(
        self,
        status: int,
        fault: Fault,
        reason: str,
        *,
        code: str = "refused",
        retry_after_s: float | None = None,
        answer: dict[str, Any] | None = None,
    ) -> None:
        self.status, self.fault, self.code, self.answer = status, fault, code, answer
        self.reason, self.retry_after_s = shortened(reason), retry_after_s
        super().__init__(f"{status} {fault.value}: {self.reason}")


class Superseded(FdeRayError):
    """The compare-and-set found another epoch or phase."""
