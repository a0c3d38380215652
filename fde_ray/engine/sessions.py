"""Sandbox sessions as the engine handles them: start, notice their loss, close, clear away.

The same for solving attempts and extraction tries. A session tells nothing here directly: its shim
talks to a plane, and the plane writes rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fde_ray.model.failures import FailureKind
from fde_ray.model.session import SessionInputs
from fde_ray.model.states import SolveEnd
from fde_ray.sandbox.listing import agent_end
from fde_ray.sandbox.places import mount_points
from fde_ray.sandbox.proving import decoys_of
from fde_ray.sandbox.records import Handle, SessionStart, handle_from
from fde_ray.store.runs import AttemptRow, Epoch

from .chronicle import Chronicle
from .home import plane_address
from .patrol import Doubt
from .runtime import Runtime

FORGOTTEN_S = 60.0
"""How long a change may go unseen of which neither the inbox nor the patrol has told."""


class Loss(NamedTuple):
    kind: FailureKind
    detail: str


_AT_WORK = ("open", "collecting")
_REPLACED = Loss(FailureKind.POD_REPLACED, "another sandbox was recorded for this session before")
_SILENT = Loss(FailureKind.SHIM_LOST, "the shim fell silent while the others were heard")


class SessionHost:
    """Sessions of one lease; `epoch` fences every change."""

    def __init__(self, runtime: Runtime, epoch: Epoch) -> None:
        self._store, self._sandbox, self._epoch = runtime.store, runtime.sandbox, epoch
        self._home, self._signer, self._clock = runtime.home, runtime.signer, runtime.clock
        self._profile = runtime.profile
        self._chronicle = Chronicle(runtime.store, runtime.objects, runtime.tenant)

    async def start(self, inputs: SessionInputs, *, sweep: str | None = None) -> dict[str, Any]:
        """Start the session, or find the one that lives; SandboxError when it cannot start.

        sweep: that planned its run, for those who look for it by hand.

        Returns its handle, for the caller to keep in the session's row; where another one is kept
        there, the caller has this one `turned_away`.
        """
        subject = inputs.subject
        plane = plane_address(self._profile, self._home, inputs.role)
        facts = await self._sandbox.probe()
        await self._chronicle.started(subject, self._clock.now(), facts)
        handle = await self._sandbox.start(
            SessionStart(
                subject=subject,
                role=inputs.role,
                plane_socket=plane,
                secret=self._signer.bootstrap_secret(subject),
                limits=inputs.limits,
                mounts=mount_points(inputs),
                sweep=sweep,
            )
        )
        # The gate is under way: what it finds closed has to be alive.
        if (decoys := await decoys_of(self._sandbox)) is not None:
            await self._chronicle.baited(subject, decoys)
        return handle.jsonable()

    async def turned_away(self, handle: dict[str, Any]) -> Loss:
        """End a sandbox that was started for a session whose row names another one."""
        stranger = handle_from(handle)
        await self._sandbox.stop(stranger)
        await self._sandbox.remove(stranger)
        return _REPLACED

    async def loss(self, attempt: AttemptRow, doubt: Doubt) -> Loss | None:
        """Return why the session will never commit; None = it lives, or has just committed.

        A shim that broke says why; one that vanished, or hangs, is our loss.
        """
        handle = self._handle(attempt)
        if handle is not None and await self._sandbox.state(handle) == "running":
            return await self._silence(attempt.subject, doubt)
        # Read again: a shim commits before it leaves.
        if (await self._store.session(attempt.subject)).state not in _AT_WORK:
            return None
        outcome = None if handle is None else await self._sandbox.outcome(handle)
        if outcome is not None and outcome.failure is not None:
            return Loss(outcome.failure, outcome.detail)
        return Loss(FailureKind.SHIM_LOST, "the shim ended without a commit")

    async def cause(self, attempt: AttemptRow) -> Loss | None:
        """Return why an agent ended that its shim saw end; None = nobody knows better.

        A memory that is used up is the agent's own end, what befell its node is our loss.
        """
        handle = self._handle(attempt)
        if handle is None or attempt.solve_end is not SolveEnd.AGENT_ERROR:
            return None
        end = await agent_end(self._sandbox, handle)
        if end is None or end.failure in (None, FailureKind.AGENT_ERROR):
            return None
        return Loss(end.failure, end.detail)

    async def _silence(self, subject: str, doubt: Doubt) -> Loss | None:
        row = await self._store.session(subject)
        heard_at = row.heartbeat_at or row.agent_started_at
        if doubt.unheard_since is None or heard_at is None or heard_at > doubt.unheard_since:
            return None
        return _SILENT if row.state in _AT_WORK else None

    async def close(
        self,
        attempt: AttemptRow,
        *,
        solve_end: SolveEnd,
        kind: FailureKind | None = None,
        detail: str | None = None,
    ) -> None:
        """Make the session's tokens void, stop what runs, and clear its folder."""
        await self._store.close_attempt(
            attempt.subject, self._epoch, solve_end=solve_end, failure=kind, detail=detail
        )
        await self.clear(attempt)

    async def finish_closing(self, attempt: AttemptRow) -> None:
        """Do the rest of `close` for a session whose row says closed, unless it was done."""
        if attempt.state == "closed" and not await self._chronicle.has_ended(attempt.subject):
            await self.clear(attempt)

    async def clear(self, attempt: AttemptRow) -> None:
        """Stop what runs of a closed session, clear its folder, and write down its end."""
        handle = self._handle(attempt)
        if handle is not None:
            await self._sandbox.stop(handle)
            await self._sandbox.remove(handle)
        await self._chronicle.ended(attempt.subject)

    async def end_lost(self, subject: str) -> bool:
        """Stop what runs under a subject that has no row, and clear it; False = nothing is here."""
        handle = self._sandbox.handle_of(subject)
        if handle is None:
            return False
        await self._sandbox.stop(handle)
        await self._sandbox.remove(handle)
        return True

    def _handle(self, attempt: AttemptRow) -> Handle | None:
        """Return the handle in the row, else one that a dead driver had no time to record."""
        if attempt.handle is not None:
            return handle_from(attempt.handle)
        return self._sandbox.handle_of(attempt.subject)
