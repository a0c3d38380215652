"""What the bucket keeps of a session: its start, its end, its dialogue, its model calls.

Written once each, from what the plane saw. The story of a run is complete without the database.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from typing import Any

from fde_ray import __version__
from fde_ray.gateway.pauses import clock_totals
from fde_ray.model.base import canonical_json
from fde_ray.model.clock import utc
from fde_ray.model.dialogue import DIALOGUE_EVENT, DialogueEvent, Replied
from fde_ray.model.result import Pause
from fde_ray.sandbox.proving import Decoys
from fde_ray.sandbox.records import SandboxFacts
from fde_ray.store.errors import KeyMissing
from fde_ray.store.objects import ObjectStore, layout
from fde_ray.store.runs import AttemptRow, CallRow, RunStore


class Chronicle:
    def __init__(self, store: RunStore, objects: ObjectStore, tenant: str) -> None:
        self._store, self._objects, self._tenant = store, objects, tenant

    async def started(self, subject: str, at: float, facts: SandboxFacts) -> None:
        """Write start.json; that of an earlier driver stays."""
        document = {
            "subject": subject,
            "at": utc(at),
            "fde_ray": __version__,
            "sandbox": facts.jsonable(),
        }
        key = layout.start_key(self._tenant, subject)
        await self._objects.create(key, canonical_json(document).encode())

    async def baited(self, subject: str, decoys: Decoys) -> None:
        """Write decoys.json: what was alive while the session's gate was tried."""
        key = layout.decoys_key(self._tenant, subject)
        await self._objects.create(key, canonical_json(decoys).encode())

    async def sandbox_of(self, subject: str) -> SandboxFacts | None:
        """Return what the session was started in; None when it never started."""
        try:
            start = await self._objects.get(layout.start_key(self._tenant, subject))
        except KeyMissing:
            return None
        return SandboxFacts.model_validate(json.loads(start)["sandbox"])

    async def has_ended(self, subject: str) -> bool:
        return await self._objects.exists(layout.end_key(self._tenant, subject))

    async def ended(self, subject: str) -> None:
        """Write end.json, the dialogue and the calls of a closed session, and its manifest when
        the plane has not come to it."""
        attempt, events, calls, pauses = await self._store.account(subject)
        tenant = self._tenant
        if attempt.commit is not None:
            key = layout.manifest_key(tenant, subject, attempt.commit.snapshot)
            if not await self._objects.exists(key):
                await self._objects.create(key, canonical_json(attempt.commit).encode())
        if events:
            await self._objects.create(layout.dialogue_key(tenant, subject), _lines(events))
        if calls:
            await self._objects.create(layout.calls_key(tenant, subject, "all", 0), _ledger(calls))
        await self._objects.create(layout.end_key(tenant, subject), _end(attempt, pauses).encode())

    async def noted(self, subject: str, at: float) -> bool:
        """Note how far a session is whose agent is at work; False = it is at no place to go on
        from: not started, in a turn, or at its end."""
        attempt, events, pauses = await self._store.story(subject)
        started, in_a_turn = (
            attempt.agent_started_at,
            events and not isinstance(events[-1], Replied),
        )
        if started is None or in_a_turn or attempt.solve_end is not None:
            return False
        document = {
            "subject": subject,
            "at": at,
            "session": session_facts(attempt, pauses),
            "events": [event.jsonable() for event in events],
        }
        key = layout.note_key(self._tenant, subject, max(0, int(at - started)))
        await self._objects.create(key, canonical_json(document).encode())
        return True

    async def graded(self, subject: str, grade_id: str, tries: int) -> None:
        """Write the calls of a grade that are billed to its solving attempt, which closed before:
        those of the judges."""
        calls = [call for call in await self._store.billed(subject) if call.grade_id == grade_id]
        if calls:
            key = layout.calls_key(self._tenant, subject, f"grade-{grade_id[:12]}", tries)
            await self._objects.create(key, _ledger(calls))


def _end(attempt: AttemptRow, pauses: Sequence[Pause]) -> str:
    end = attempt.solve_ended_at or attempt.ended_at
    clock = clock_totals(attempt.agent_started_at, end, pauses, end or 0.0)
    has_started, commit = attempt.agent_started_at is not None, attempt.commit
    return canonical_json(
        {
            "subject": attempt.subject,
            "solve_end": attempt.solve_end,
            "failure": attempt.failure,
            "detail": attempt.detail,
            "ended_at": None if attempt.ended_at is None else utc(attempt.ended_at),
            "snapshot": None if commit is None else commit.snapshot,
            "tree_hash": None if commit is None else commit.tree_hash,
            "charged_s": clock.charged_s if has_started else None,
            "paused_s": clock.paused_s if has_started else None,
            "session": session_facts(attempt, pauses),
        }
    )


def session_facts(attempt: AttemptRow, pauses: Sequence[Pause]) -> dict[str, Any]:
    """Return what a lost row is made of again (`store.traces.SessionFacts`)."""
    return {
        "started_at": attempt.started_at,
        "agent_started_at": attempt.agent_started_at,
        "solve_ended_at": attempt.solve_ended_at,
        "ended_at": attempt.ended_at,
        "first_score_sha": attempt.first_score_sha,
        "exit": None if attempt.exit is None else attempt.exit.jsonable(),
        "pauses": [pause.jsonable() for pause in pauses],
    }


def _lines(events: Sequence[DialogueEvent]) -> bytes:
    return b"".join(DIALOGUE_EVENT.dump_json(event) + b"\n" for event in events)


def _ledger(calls: Sequence[CallRow]) -> bytes:
    """The ledger's rows without the replies, which the dialogue and the workspace hold."""
    rows = [call._replace(reply=None)._asdict() for call in calls]
    text = "".join(canonical_json(row) + "\n" for row in rows)
    return gzip.compress(text.encode(), mtime=0)
