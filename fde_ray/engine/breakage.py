"""What an unforeseen error in the work on one run means for that run, and for all the others."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from fde_ray.model.errors import CaseError, RunFailure, StoreError, UserError, shortened
from fde_ray.model.failures import FAILURES, FailureKind
from fde_ray.model.profile import Profile
from fde_ray.store.errors import KeyInvalid, KeyMissing, RowMissing

from .runtime import Runtime

MIXED = 3
"""How many times more losses of several kinds a run may have than equal ones."""
_OF_ONE_RUN = (KeyInvalid, KeyMissing, RowMissing)


def loss_of(error: Exception) -> tuple[FailureKind, str]:
    """Return the kind and detail that the run's row keeps."""
    if isinstance(error, RunFailure):
        return error.kind, error.detail
    return FailureKind.INTERNAL_ERROR, shortened(f"{type(error).__name__}: {error}")


def is_tried_again(kind: FailureKind, losses: Sequence[str], profile: Profile) -> bool:
    """Whether a new attempt follows the last of `losses`, whose kind is `kind`.

    Equal losses tell that another attempt would be lost alike; different ones may be bad luck,
    up to three times as many.
    """
    if not FAILURES[kind].retried or len(losses) >= MIXED * profile.attempts:
        return False
    return losses.count(kind.value) < profile.attempts


async def is_store_failure(error: Exception, runtime: Runtime) -> bool:
    """Whether nothing can go on: a store is out of order, not only what it has of one run.

    An error of one object counts when a new object cannot be written and read back either.
    """
    if isinstance(error, UserError):
        return not isinstance(error, CaseError)
    if not isinstance(error, StoreError) or isinstance(error, _OF_ONE_RUN):
        return False
    key, data = f"{runtime.tenant}/health/{secrets.token_hex(8)}", b"ok"
    try:
        await runtime.store.lease_holder()
        await runtime.objects.create(key, data)
        is_kept = await runtime.objects.get(key) == data
        await runtime.objects.delete(key)
    except (StoreError, UserError):
        return True
    return not is_kept
