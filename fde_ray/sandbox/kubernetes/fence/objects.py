"""What every object of the fence has in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fde_ray.sandbox.kubernetes.contract import PREFIX

Object = dict[str, Any]

PART_OF = {"app.kubernetes.io/part-of": "fde-ray"}


def built(
    api_version: str,
    kind: str,
    name: str,
    namespace: str | None = None,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **rest: Any,
) -> Object:
    """Return an object; namespace None = it belongs to the whole cluster. rest: spec, rules, …"""
    metadata: Object = {"name": name}
    if namespace is not None:
        metadata["namespace"] = namespace
    metadata["labels"] = PART_OF | dict(labels or {})
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **rest}


def explained(text: str) -> dict[str, str]:
    """Return the annotation that tells a reader of the cluster what an object is for."""
    return {f"{PREFIX}is": text}
