"""Who may do what: one pure check from a token, its session and an action."""

from __future__ import annotations

from enum import StrEnum

from fde_ray.model.boxes import BOX_ROLES
from fde_ray.model.errors import Refusal
from fde_ray.model.failures import Fault
from fde_ray.model.states import Scope

from .ports import Session
from .tokens import TokenClaims


class Action(StrEnum):
    READ = "read"
    """Inputs, archives, the list of models."""
    START = "start"
    CALL = "call"
    """A model call."""
    ASK = "ask"
    """Post a turn; `turns` refuses new ones after the end and still answers repeats."""
    HEAR = "hear"
    """Fetch the reply to a turn, also after the end: the reply may be what ends solving."""
    TELL = "tell"
    """Exit and events."""
    COLLECT = "collect"
    EVALUATE = "evaluate"
    SERVE = "serve"
    """Take programs of a grade, fetch their folders, and tell how they ended."""
    BEAT = "beat"
    """Heartbeat and renewal: always answered, so that a shim learns why it must stop."""


_NEEDS_SOLVE_SCOPE = frozenset(
    {Action.READ, Action.START, Action.CALL, Action.ASK, Action.HEAR, Action.EVALUATE}
)
_ENDS_WITH_SOLVING = frozenset(
    {Action.READ, Action.START, Action.CALL, Action.EVALUATE, Action.COLLECT}
)


_OF_AGENTS = frozenset(Action) - {Action.SERVE}
_OF_BOXES = frozenset({Action.SERVE, Action.START})
_SCOPES = {
    "solve": frozenset({Scope.SOLVE, Scope.COLLECT}),
    "extract": frozenset({Scope.EXTRACT}),
    "score": frozenset({Scope.SCORE}),
    "exec": frozenset({Scope.EXEC}),
}


def check(claims: TokenClaims, session: Session | None, action: Action) -> Session:
    """Return the session if the token may do this to it now; else Refusal 403."""
    if session is None or (claims.sub, claims.run, claims.role) != (
        session.subject,
        session.bill.run_id,
        session.inputs.role,
    ):
        raise _refused("not_yours", "this token belongs to no such session")
    # A session that a rebuild of the store adopted knows of no shim yet.
    if session.serial and (claims.serial, claims.nonce) != (session.serial, session.nonce):
        raise _refused("replaced", "another shim has taken over this session")
    if action is Action.BEAT:
        return session
    if action not in (_OF_BOXES if session.inputs.role in BOX_ROLES else _OF_AGENTS):
        raise _refused("wrong_scope", f"no such thing for a session of role {session.inputs.role}")
    if not session.live:
        raise _refused("not_live", f"the session is over ({session.stop or 'ended'})")
    if session.committed and action not in (Action.COLLECT, Action.HEAR):
        raise _refused("committed", "the session has committed its final snapshot")
    if claims.scope is Scope.COLLECT and action in _NEEDS_SOLVE_SCOPE:
        raise _refused("wrong_scope", "this token may only collect")
    if action is Action.EVALUATE and not session.inputs.evaluate:
        raise _refused("no_evaluator", "this session has no evaluator")
    if session.solve_end is not None and _is_closed(claims.scope, action):
        raise _refused("solve_ended", f"solving has ended ({session.solve_end.value})")
    return session


def scope_fits(role: str, scope: Scope) -> bool:
    """Whether a session of this role can have a token of this scope."""
    return scope in _SCOPES[role]


def _is_closed(scope: Scope, action: Action) -> bool:
    if action is Action.COLLECT:
        return scope is Scope.SOLVE
    return action in _ENDS_WITH_SOLVING


def _refused(code: str, reason: str) -> Refusal:
    return Refusal(403, Fault.AGENT, reason, code=code)
