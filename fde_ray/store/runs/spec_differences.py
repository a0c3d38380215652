"""Tells a sweep's stored spec from another one of its name."""

from __future__ import annotations

import json
from typing import Any

from fde_ray.model.errors import UserError, shortened

_ABSENT = object()


class SpecDiffers(UserError):
    """A sweep of this name was submitted with another spec. reason: without the way on."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"{reason}; choose another name, or change the sweep with --replace"
            " (`fde-ray sweep diff` shows what that does)."
        )


def refuse_other_spec(name: str, known: str, given: str) -> None:
    """SpecDiffers unless both, as canonical JSON, are the same."""
    if known == given:
        return
    where, old, new = spec_difference(json.loads(known), json.loads(given)) or ("", "", "")
    raise SpecDiffers(
        f"sweep {name!r} exists with another spec: {where or 'the document'} is"
        f" {_spelled(old)} there and {_spelled(new)} here"
    )


def _spelled(value: Any) -> str:
    return "absent" if value is _ABSENT else shortened(json.dumps(value), 60)


def spec_difference(old: Any, new: Any, where: str = "") -> tuple[str, Any, Any] | None:
    """Return the first path at which two JSON values differ, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        pairs = [(f"{where}.{k}" if where else k, k) for k in sorted(old.keys() | new.keys())]
        parts = [(path, old.get(k, _ABSENT), new.get(k, _ABSENT)) for path, k in pairs]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        parts = [(f"{where}[{i}]", a, z) for i, (a, z) in enumerate(zip(old, new, strict=True))]
    else:
        return None if old == new else (where, old, new)
    return next((found for path, a, z in parts if (found := spec_difference(a, z, path))), None)
