"""The agent programs that a runner can start, one entry per scaffold."""

from __future__ import annotations

from typing import NamedTuple


class Agent(NamedTuple):
    """argv: follows the zipapp's own path; it speaks JSON lines on stdio (see `runner`)."""

    argv: tuple[str, ...]
    state_dirs: tuple[str, ...] = ()
    """Top-level names in the workspace that are the scaffold's own and never a deliverable."""


AGENTS = {
    "minimal": Agent(("agent", "minimal")),
    "scripted": Agent(("agent", "scripted")),
}
