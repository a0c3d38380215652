"""What every kind of sandbox can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .records import Completed, Handle, Once, Outcome, SandboxFacts, SessionStart, SessionState


class Sandbox(Protocol):
    async def probe(self) -> SandboxFacts:
        """Return what works here; raise UserError with the remedy when nothing does."""
        ...

    async def start(self, session: SessionStart) -> Handle:
        """Start a session, or return the one that was started under this subject before."""
        ...

    def handle_of(self, subject: str) -> Handle | None:
        """Return the handle of a session that was started before; None when there is none."""
        ...

    async def state(self, handle: Handle) -> SessionState: ...

    async def over(self, handles: Sequence[Handle]) -> frozenset[str]:
        """Return the subjects of those sessions that run no more, in one look for all."""
        ...

    async def outcome(self, handle: Handle) -> Outcome: ...

    async def stop(self, handle: Handle) -> None:
        """End a session at once, without collecting; quiet when it is over."""
        ...

    async def remove(self, handle: Handle) -> None:
        """Delete what an ended session left; quiet when it is gone."""
        ...

    async def run_once(self, once: Once) -> Completed:
        """Run one program without network or token; SandboxError when it could not start."""
        ...
