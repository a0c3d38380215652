"""Which addresses are this machine's own, and may be reached by a test."""

from __future__ import annotations

OWN_PREFIXES = ["127.", "::1", "localhost"]
"""The lab's tests add the lab's: no packet leaves its link."""
