"""The agent scaffolds that a system may name: `scaffold(name)` is the whole interface."""

from __future__ import annotations

from .registry import SCAFFOLDS, Scaffold, scaffold

__all__ = ["SCAFFOLDS", "Scaffold", "scaffold"]
