"""A model call between two processes of the fleet: small plain data, also for what went wrong."""

from __future__ import annotations

from typing import Literal, Protocol

from fde_ray.model.base import Record
from fde_ray.model.chat import Bill, ChatReply, ChatRequest
from fde_ray.model.errors import (
    FdeRayError,
    ProviderError,
    Refusal,
    RunFailure,
    StoreError,
    UserError,
    shortened,
)
from fde_ray.model.failures import FailureKind, Fault
from fde_ray.model.states import PauseCause


class CallWait(Record):
    """What a call waits for before it is on its way, and since when."""

    cause: PauseCause
    since: float


class PoolCall(Record):
    """Asked again under the same `call_id`, it joins the call in flight or gets the kept reply."""

    call_id: str
    request: ChatRequest
    bill: Bill
    heard: CallWait | None = None
    """What the caller knows that the call waits for."""


class Trouble(Record):
    """An error as it crosses from one process to another."""

    type: Literal["provider", "refusal", "store", "run", "user"]
    detail: str
    kind: FailureKind | None = None
    status: int | None = None
    retry_after_s: float | None = None
    uncertain: bool = False
    fault: Fault | None = None
    code: str = "refused"


class PoolReply(Record):
    """Neither reply nor trouble: the call goes on, ask again."""

    reply: ChatReply | None = None
    trouble: Trouble | None = None
    wait: CallWait | None = None


class MemberBusy(Exception):
    """As many calls wait for this member as may; the call was not handed over."""


class MemberLost(Exception):
    """This member died or does not answer; it may or may not have made the call."""


class MemberGone(MemberLost):
    """Its process will not come back; another one has to be started."""


class PoolHandle(Protocol):
    """A pool member as seen from another process."""

    async def answer(self, call: PoolCall) -> PoolReply:
        """Return within a bound; MemberBusy, MemberLost."""
        ...


def trouble_of(error: Exception) -> Trouble:
    """Return how an error is told to another process; one that nobody foresaw is internal."""
    if isinstance(error, ProviderError):
        return Trouble(
            type="provider",
            detail=error.detail,
            kind=error.kind,
            status=error.status,
            retry_after_s=error.retry_after_s,
            uncertain=error.uncertain,
        )
    if isinstance(error, Refusal):
        return Trouble(
            type="refusal",
            detail=error.reason,
            status=error.status,
            fault=error.fault,
            code=error.code,
            retry_after_s=error.retry_after_s,
        )
    if isinstance(error, StoreError):
        return Trouble(type="store", detail=error.detail)
    if isinstance(error, RunFailure):
        return Trouble(type="run", detail=error.detail, kind=error.kind)
    if isinstance(error, UserError):
        return Trouble(type="user", detail=str(error))
    detail = shortened(f"{type(error).__name__}: {error}")
    return Trouble(type="run", detail=detail, kind=FailureKind.INTERNAL_ERROR)


def error_of(trouble: Trouble) -> FdeRayError:
    """Return the error that `trouble_of` told of."""
    if trouble.type == "provider":
        assert trouble.kind is not None
        return ProviderError(
            trouble.detail,
            kind=trouble.kind,
            status=trouble.status,
            retry_after_s=trouble.retry_after_s,
            uncertain=trouble.uncertain,
        )
    if trouble.type == "refusal":
        assert trouble.status is not None
        assert trouble.fault is not None
        return Refusal(
            trouble.status,
            trouble.fault,
            trouble.detail,
            code=trouble.code,
            retry_after_s=trouble.retry_after_s,
        )
    if trouble.type == "store":
        return StoreError(trouble.detail)
    if trouble.type == "user":
        return UserError(trouble.detail)
    assert trouble.kind is not None
    return RunFailure(trouble.kind, trouble.detail)
