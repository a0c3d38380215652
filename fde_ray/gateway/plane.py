"""The run-plane and the grade-plane as one class: a method per route of the wire API.

`app` puts HTTP around it; the null sandbox and the benchmarks call it directly. Every method takes
the bearer token first and raises Refusal. Solving ends by the first of: a reply that finishes, the
agent's exit, the time limit on the plane's own clock, a cancel of the engine.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

from fde_ray.metering.metrics import CallMetrics
from fde_ray.metering.places import Waiting
from fde_ray.model.base import sha256_hex
from fde_ray.model.chat import ChatReply
from fde_ray.model.clock import Clock
from fde_ray.model.errors import Refusal, StoreError
from fde_ray.model.failures import FailureKind, Fault
from fde_ray.model.profile import OtherModels
from fde_ray.model.result import Pause
from fde_ray.model.session import AgentExit, Commit, SessionInputs
from fde_ray.model.states import Scope, SolveEnd
from fde_ray.model.wire import WireRequest
from fde_ray.store.objects import ObjectStore
from fde_ray.store.runs import RunStore
from fde_ray.store.runs.pauses import GRADING

from .access import Action, check, scope_fits
from .boxes import BoxJobs
from .calls import AgentCalls
from .clocks import SessionClocks
from .collection import Collection
from .gathering import Gathering
from .messages import (
    GateReport,
    Heartbeat,
    HeartbeatReply,
    StartedReply,
    StopReason,
    TokenReply,
    TokenRequest,
    TurnReply,
    TurnRequest,
)
from .open_turns import OpenTurns
from .pauses import ClockTotals, clock_verdict
from .ports import Calls, Evaluate, EvaluateReply, Session
from .sessions import Sessions
from .tokens import TokenClaims, TokenSigner
from .turns import Turns

log = logging.getLogger(__name__)

BREATH_S = 5.0
BEATS_WITHIN_S = 0.02
"""Heartbeats that come within so short a time are looked up together."""
NONCE_CHARS = 16
MAX_EVALUATE_BYTES = 64 * 2**20
_STOP_REASONS: dict[SolveEnd, StopReason] = {
    SolveEnd.TIME_LIMIT: "time_limit",
    SolveEnd.CANCELLED: "cancelled",
    SolveEnd.INFRA_LOST: "pause_cap",
}


class Caller(NamedTuple):
    claims: TokenClaims
    session: Session


class Plane:
    """`evaluate` None: there is no evaluator behind this plane (the run-plane).

    ingest: where shims send their archives; None = here.
    """

    def __init__(
        self,
        *,
        store: RunStore,
        objects: ObjectStore,
        calls: Calls,
        signer: TokenSigner,
        clock: Clock,
        tenant: str = "local",
        evaluate: Evaluate | None = None,
        ingest: str | None = None,
        other_models: OtherModels = "map",
        metrics: CallMetrics | None = None,
        provider_retries: int = 0,
    ) -> None:
        self.clocks = SessionClocks(store, clock)
        self._store, self._clock, self._signer = store, clock, signer
        self._evaluate, self._ingest = evaluate, ingest
        self._metrics = metrics
        self._sessions = Sessions(store)
        self._beats = Gathering(partial(store.vitals, pauses=True), BEATS_WITHIN_S)
        self.open_turns = OpenTurns(store, self.clocks, clock)
        self._turns = Turns(store, self.open_turns, self.clocks, clock)
        self._collection = Collection(store, objects, tenant)
        self.boxes = BoxJobs(store, self._collection, self._box)
        heard = _unheard if metrics is None else partial(metrics.hearing, clock=clock)
        self._calls = AgentCalls(
            calls, self.open_turns, self.clocks, other_models, heard, provider_retries
        )
        # A grade-plane that lives is no comfort to a solving run.
        kind = "run-" if evaluate is None else GRADING
        self._replica = kind + secrets.token_hex(8)
        self.breathed_at: float | None = None
        """When liveness was last written; None = not yet."""

    # tokens

    async def issue_token(self, request: TokenRequest) -> TokenReply:
        """Exchange a bootstrap secret; the same nonce gives a token of the same serial."""
        if not self._signer.proves(request.subject, request.secret):
            raise Refusal(401, Fault.AGENT, "the secret is not valid", code="bad_secret")
        session = await self._sessions.find(request.subject)
        if session is None or not session.live:
            raise Refusal(403, Fault.AGENT, "the session is over", code="not_live")
        if not scope_fits(session.inputs.role, request.scope):
            raise Refusal(403, Fault.AGENT, "no such scope for this session", code="wrong_scope")
        nonce = sha256_hex(request.nonce.encode())[:NONCE_CHARS]
        serial = await self._serial(session, nonce, request.serial)
        token = self._signer.mint(
            subject=session.subject,
            run=session.bill.run_id,
            role=session.inputs.role,
            scope=request.scope,
            models=(session.inputs.model,),
            serial=serial,
            nonce=nonce,
        )
        return self._token_reply(token, request.scope, serial)

    async def _serial(self, session: Session, nonce: str, held: int | None) -> int:
        """Return the serial of this shim's tokens; a shim that is new here ends those of others.

        The first one is written when it starts the agent, in the same transaction.
        """
        if session.serial == 0:
            return 1
        if session.nonce == nonce:
            return session.serial
        return await self._store.token_serial(session.subject, nonce, held)

    async def renew_token(self, bearer: str) -> TokenReply:
        caller = await self._caller(bearer, Action.BEAT)
        if not caller.session.live:
            raise Refusal(403, Fault.AGENT, "the session is over", code="not_live")
        claims = caller.claims
        return self._token_reply(self._signer.renew(claims), claims.scope, claims.serial)

    def admitted(self, bearer: str) -> str:
        """Return the bearer if it is a token of ours: only then is a body read. Refusal 401."""
        self._signer.verify(bearer)
        return bearer

    # inputs and start

    async def inputs(self, bearer: str) -> SessionInputs:
        return (await self._caller(bearer, Action.READ)).session.inputs

    async def archive(self, bearer: str, name: str) -> AsyncIterator[bytes]:
        caller = await self._caller(bearer, Action.READ)
        return await self._collection.archive(caller.session, name)

    async def started(self, bearer: str, gate: GateReport | None = None) -> StartedReply:
        """Start the agent's clock; the first call wins."""
        claims, session = await self._caller(bearer, Action.START)
        if gate is not None:
            await self._collection.keep_gate(session, gate)
        now = self._clock.now()
        if session.started_at is None:
            await self._store.mark_agent_started(session.subject, nonce=claims.nonce)
            self.clocks.starts(session.subject)
        return StartedReply(now=now)

    async def heartbeat(self, bearer: str, beat: Heartbeat) -> HeartbeatReply:
        claims = self._signer.verify(bearer)
        subject, writes = claims.sub, self.clocks.writes(claims.sub)
        vitals = await self._beats.get(subject)
        session = check(claims, await self._sessions.seen(subject, vitals), Action.BEAT)
        pauses = None if vitals is None else vitals.pauses
        if vitals is not None and session.is_solving:
            await self._catch_up(session, writes, is_served=vitals.is_served)
            await self.clocks.confirm(subject, beat.held)
            if self.clocks.writes(subject) != writes:
                pauses = None
        totals = await self._totals(session, pauses)
        session = await self._enforce_clock(session, totals)
        self.clocks.heard(subject, beat.cpu_s, beat.rss_bytes)
        reason = stop_reason(session)
        return HeartbeatReply(
            state="run" if reason is None else "stop",
            reason=reason,
            charged_s=totals.charged_s,
            remaining_s=max(0.0, session.inputs.limits.time_s - totals.charged_s),
            paused=self.clocks.is_paused(subject),
            paused_s=totals.paused_s,
        )

    # dialogue and end

    async def post_turn(self, bearer: str, request: TurnRequest) -> TurnReply:
        session = (await self._caller(bearer, Action.ASK)).session
        return await self._turns.post(session, request)

    async def turn_reply(self, bearer: str, turn_no: int, wait_s: float = 20.0) -> TurnReply:
        session = (await self._caller(bearer, Action.HEAR)).session
        return await self._turns.wait(session, turn_no, wait_s)

    async def exit(self, bearer: str, notice: AgentExit) -> None:
        session = (await self._caller(bearer, Action.TELL)).session
        await self._store.record_exit(session.subject, notice)
        if session.solve_end is None:
            self.clocks.close(session.subject)

    # collection

    @asynccontextmanager
    async def uploading(self, bearer: str) -> AsyncIterator[None]:
        """Take in one part inside the block; its body is read only there."""
        session = (await self._caller(bearer, Action.COLLECT)).session
        async with self._collection.place(session.subject):
            yield

    async def put_part(
        self, bearer: str, snapshot: str, seq: int, sha256: str, data: bytes
    ) -> None:
        session = (await self._caller(bearer, Action.COLLECT)).session
        await self._collection.put_part(session, snapshot, seq, sha256, data)

    async def commit(self, bearer: str, commit: Commit) -> None:
        session = (await self._caller(bearer, Action.COLLECT)).session
        await self._collection.commit(session, commit)

    async def put_events(self, bearer: str, seq: int, data: bytes) -> None:
        session = (await self._caller(bearer, Action.TELL)).session
        await self._collection.put_events(session, seq, data)

    # models

    async def models(self, bearer: str) -> tuple[str, ...]:
        return (await self._caller(bearer, Action.READ)).claims.models

    async def chat(self, bearer: str, request: WireRequest, call_id: str) -> ChatReply:
        caller = await self._caller(bearer, Action.CALL)
        try:
            return await self._calls.complete(*caller, request, call_id)
        except Refusal as refusal:
            await self._after_refused_call(caller.session, refusal)
            raise

    async def chat_stream(
        self, bearer: str, request: WireRequest, call_id: str
    ) -> AsyncGenerator[bytes | ChatReply, None]:
        """Yield server-sent events, or a stored reply alone."""
        caller = await self._caller(bearer, Action.CALL)
        try:
            async for piece in self._calls.stream(*caller, request, call_id):
                yield piece
        except Refusal as refusal:
            await self._after_refused_call(caller.session, refusal)
            raise

    async def evaluate(self, bearer: str, output: bytes) -> EvaluateReply:
        session = (await self._caller(bearer, Action.EVALUATE)).session
        if self._evaluate is None:
            raise Refusal(404, Fault.AGENT, "there is no evaluator here", code="no_evaluator")
        if len(output) > MAX_EVALUATE_BYTES:
            raise Refusal(413, Fault.AGENT, "the output folder is too large", code="too_large")
        return await self._evaluate(session.subject, output)

    # the engine's side

    async def breathe(self) -> None:
        """Write liveness and look after open turns until cancelled.

        The first breath turns an outage into a pause.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._live(), name="breath")
                group.create_task(self.open_turns.watch(), name="open turns")
                group.create_task(self.boxes.watch(), name="jobs of boxes")
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    def leave(self) -> None:
        """Keep nobody waiting for a reply to a turn, or for a program, any more; everything else
        is served as ever."""
        self._turns.leave()
        self.boxes.leave()

    async def _live(self) -> None:
        while True:
            try:
                await self.clocks.breathe(self._replica)
                self.breathed_at = self._clock.now()
            except StoreError as error:
                log.warning("liveness_not_written", extra={"reason": error.detail})
            await self._clock.sleep(BREATH_S)

    async def _caller(self, bearer: str, action: Action) -> Caller:
        claims = self._signer.verify(bearer)
        writes = self.clocks.writes(claims.sub)
        session = await self._sessions.find(claims.sub)
        if session is not None and session.is_solving and self._may_be_over(session):
            session = await self._enforce_clock(session, await self._totals(session))
        caller = Caller(claims, check(claims, session, action))
        if action is Action.CALL:
            await self._catch_up(caller.session, writes)
        return caller

    async def _box(self, bearer: str) -> Session:
        return (await self._caller(bearer, Action.SERVE)).session

    async def _catch_up(self, session: Session, writes: int, *, is_served: bool = False) -> None:
        """Learn what another replica knows of the session, if its clock stands still for that."""
        subject, cause = session.subject, session.open_cause
        if await self.clocks.learn(subject, cause, writes, is_served=is_served):
            await self.open_turns.recall(subject)

    def _may_be_over(self, session: Session) -> bool:
        """Charged time is at most wall time, so that most calls need no look at the pauses."""
        if session.started_at is None:
            return False
        return self._clock.now() - session.started_at >= session.inputs.limits.time_s

    async def _totals(self, session: Session, pauses: Iterable[Pause] | None = None) -> ClockTotals:
        """Return the clock. What may yet become a pause does not count against the limit."""
        totals = await self.clocks.totals(session, pauses)
        if totals.charged_s < session.inputs.limits.time_s:
            return totals
        doubt_s = await self.open_turns.doubtful_s(session.subject)
        totals = await self.clocks.totals(session)
        return totals._replace(charged_s=totals.charged_s - doubt_s)

    async def _enforce_clock(self, session: Session, totals: ClockTotals) -> Session:
        limits = session.inputs.limits
        verdict = clock_verdict(totals, time_s=limits.time_s, pause_cap_s=limits.pause_cap_s)
        if verdict is None or not session.is_solving:
            return session
        end = SolveEnd.TIME_LIMIT if verdict == "time_limit" else SolveEnd.INFRA_LOST
        counts = await self._end(session, end, verdict)
        return session.evolve(solve_end=counts, solve_ended_at=self._clock.now())

    async def _after_refused_call(self, session: Session, refusal: Refusal) -> None:
        """What will not mend itself stops the agent: a key or model name that the provider does
        not know, and money that is spent."""
        if self._metrics is not None:
            self._metrics.refused(refusal)
        if refusal.fault is Fault.BUDGET:
            await self._end(session, SolveEnd.BUDGET, f"{refusal.code}: {refusal.reason}")
        if refusal.code == FailureKind.PROVIDER_REJECTED.value and refusal.fault is Fault.OURS:
            await self._end(session, SolveEnd.INFRA_LOST, f"{refusal.code}: {refusal.reason}")

    async def _end(self, session: Session, end: SolveEnd, reason: str) -> SolveEnd:
        counts = await self._store.end_solving(session.subject, end, detail=reason)
        self.clocks.close(session.subject)
        fields = {"subject": session.subject, "end": counts.value, "reason": reason}
        log.info("solving_ended", extra=fields)
        return counts

    def _token_reply(self, token: str, scope: Scope, serial: int) -> TokenReply:
        return TokenReply(
            token=token,
            expires_in_s=self._signer.lifetime_s,
            scope=scope,
            serial=serial,
            ingest=self._ingest,
        )


def _unheard(waiting: Waiting) -> Waiting:
    return waiting


def stop_reason(session: Session) -> StopReason | None:
    """Return why the shim must stop its agent; None = go on."""
    if session.stop is not None:
        return session.stop
    if session.solve_end is not None:
        return _STOP_REASONS.get(session.solve_end, "finished")
    return None if session.live and not session.committed else "finished"
