"""What the stores raise beside `model.errors.StoreError` and `Superseded`."""

from __future__ import annotations

from fde_ray.model.errors import FdeRayError, StoreError, UserError


class KeyMissing(StoreError):
    """No object has this key."""

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"no object {key}")


class KeyInvalid(StoreError):
    """A key that no object may have."""

    def __init__(self, key: str, reason: str) -> None:
        self.reason = reason
        super().__init__(f"object key {key[:80]!r} {reason}")


class RowMissing(StoreError):
    """The run store has no such run, attempt, call or sweep."""


class Conflict(FdeRayError):
    """A repeat of a known turn, part or commit that says something else."""


class SweepMissing(UserError):
    """The bucket holds no such sweep."""

    def __init__(self, tenant: str, sweep: str) -> None:
        super().__init__(f"there is no sweep {sweep!r} of {tenant!r} in the store")


class Unstorable(Conflict):
    """A value that no column can hold, such as a number of more than 64 bits."""
