"""The record class that every document, event and result of fde_ray is made of."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Frozen, closed to unknown keys, and free of NaN and infinity."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    def evolve(self, **changes: Any) -> Self:
        """Return a validated copy with `changes` applied; unknown names are refused."""
        return type(self).model_validate(self.model_dump(by_alias=False) | changes)

    def jsonable(self) -> dict[str, Any]:
        """Return plain JSON types, every field present."""
        return self.model_dump(mode="json")


def canonical_json(value: Any) -> str:
    """Return the one spelling of a JSON value: sorted keys, no spaces, no NaN."""
    if isinstance(value, Record):
        value = value.jsonable()
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def sha256_hex(data: bytes | str) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def digest(value: Any) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of `value`."""
    return sha256_hex(canonical_json(value))
