"""What a sweep cost: model calls and compute apart, by run, system, case, role, model or attempt.

Everything here is a sum over the ledger and over the life of sandboxes. Nothing an agent says of
itself takes part. Unknown is counted beside the sums, never in them as 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from pydantic import Field

from fde_ray.model.base import Record
from fde_ray.model.boxes import BOX_ROLES
from fde_ray.model.failures import FAILURES, Fault, known_kind
from fde_ray.model.session import SessionRole
from fde_ray.model.states import Role

from .aggregates import Total
from .tallies import Tally, added

By: TypeAlias = Literal["run", "system", "case", "role", "model", "attempt"]
BYS: tuple[By, ...] = ("run", "system", "case", "role", "model", "attempt")
MOST_ESTIMATED = 0.01
_ROLES = [role.value for role in Role]


class SpendingRun(NamedTuple):
    """A planned run of the sweep."""

    run_id: str
    grade_id: str
    case_id: str
    condition: str
    system: str
    repeat: int
    is_valid: bool
    """Whether its score is a valid one."""


class Session(NamedTuple):
    """A solving attempt, an extraction try or a box, and what its sandbox cost."""

    subject: str
    run_id: str
    grade_id: str | None
    route: int | None
    role: SessionRole
    number: int
    model: str
    failure: str | None
    machine: str
    """Kind of node, or `local`."""
    began_at: float | None
    """None = it never held anything."""
    ended_at: float | None
    """None = at work, or not known."""
    end_source: str
    seconds: float | None
    """None = it is not known how long its sandbox lived."""
    cpu: float | None
    memory_bytes: int | None
    """None = not known, like the cost then."""
    rate: str
    """Which price was taken."""
    nanousd: int | None
    """None = unknown, with the reason."""
    reason: str

    @property
    def bill_role(self) -> str:
        return Role.AGENT.value if self.role == "solve" else Role.EXTRACTOR.value


class Spend(Record):
    """Model calls. Tokens are those of calls whose tokens are known apart."""

    calls: int
    """That may have been charged."""
    failed: int
    """On which no provider did any work: free."""
    open: int
    """Not ended, in no sum yet."""
    offline: int
    tokens: dict[str, int]
    uncounted: int
    nanousd: Total
    estimated_nanousd: int
    """Of the known sum: calls that no provider counted to the end."""
    lost_nanousd: Total
    """Of the sum: attempts and tries that were lost."""


class ComputeSpend(Record):
    sessions: int
    seconds: float
    nanousd: Total
    lost_nanousd: Total
    unknown_reasons: tuple[str, ...] = ()


class SpendGroup(Record):
    key: dict[str, str | int]
    runs: int
    valid: int | None
    """Runs with a valid score; None = the group is not made of whole runs."""
    llm: Spend
    compute: ComputeSpend
    llm_nanousd_per_valid: float | None
    """None = no valid score, or an unknown cost."""
    compute_nanousd_per_valid: float | None


class UnpricedModel(Record):
    model: str
    calls: int
    reason: str


class SpendSummary(Record):
    """What `fde-ray cost --json` prints and `cost_summary.json` holds."""

    schema_: Literal["fde_ray.costs/1"] = Field(alias="schema", default="fde_ray.costs/1")
    sweep: str
    by: By
    total: SpendGroup
    groups: tuple[SpendGroup, ...]
    estimated_share: float | None
    """Share of the known cost that no provider counted to the end; None = nothing was charged."""
    unpriced: tuple[UnpricedModel, ...]
    price_hashes: tuple[str, ...]
    reconcile_gap: float | None
    """(runs + shared + overhead + idle - nodes) / nodes; None = no nodes are on record."""
    warnings: tuple[str, ...]


class Spending(NamedTuple):
    """What was found of a sweep. Tallies and sessions may hold more than its runs: left out."""

    sweep: str
    runs: Sequence[SpendingRun]
    tallies: Sequence[Tally]
    sessions: Sequence[Session]
    reconcile_gap: float | None = None
    notes: tuple[str, ...] = ()
    """What a reader should know besides."""


def lost_subjects(sessions: Iterable[Session]) -> frozenset[str]:
    """Return the attempts and tries that count for nothing: another took their place, or they
    ended by a trouble of ours or of a provider. A box that another followed has done its work."""
    last: dict[tuple[str, str | None, int | None], int] = {}
    sessions = list(sessions)
    for one in sessions:
        place = one.run_id, one.grade_id, one.route
        last[place] = max(one.number, last.get(place, 0))
    return frozenset(
        one.subject
        for one in sessions
        if _is_lost(one)
        or (one.role not in BOX_ROLES and one.number < last[one.run_id, one.grade_id, one.route])
    )


def _is_lost(session: Session) -> bool:
    if session.failure is None or session.role == "extract":
        return False
    rule = FAILURES[known_kind(session.failure)]
    return not rule.graded and rule.fault in (Fault.OURS, Fault.PROVIDER)


def summarised(found: Spending, by: By = "role") -> SpendSummary:
    """Return the summary; equal facts in any order give an equal object."""
    facts = _Facts.of(found)
    buckets: defaultdict[_Key, _Bucket] = defaultdict(lambda: _Bucket([], [], []))
    for tally in facts.tallies:
        buckets[_tally_key(by, tally, facts)].tallies.append(tally)
    for session in facts.sessions:
        buckets[_session_key(by, session, facts)].sessions.append(session)
    if by in _OF_RUNS:
        for run in facts.runs.values():
            buckets[_run_key(by, run)].runs.append(run)
    whole = _Bucket(list(facts.runs.values()), facts.tallies, facts.sessions)
    total = _group({}, whole, facts.lost)
    groups = [
        _group(dict(zip(_NAMES[by], key, strict=True)), buckets[key], facts.lost)
        for key in sorted(buckets, key=_order(by))
    ]
    owed = [tally for tally in facts.tallies if tally.is_owed]
    return SpendSummary(
        sweep=found.sweep,
        by=by,
        total=total,
        groups=tuple(groups),
        estimated_share=_estimated_share(total.llm),
        unpriced=_unpriced(owed),
        price_hashes=tuple(sorted({tally.key.price_hash for tally in owed})),
        reconcile_gap=found.reconcile_gap,
        warnings=(*_warnings(total), *found.notes),
    )


_Key: TypeAlias = tuple[str | int, ...]
_NAMES: dict[By, tuple[str, ...]] = {
    "run": ("run_id", "grade_id", "case", "condition", "system", "repeat"),
    "system": ("system", "condition"),
    "case": ("case",),
    "role": ("role",),
    "model": ("model", "role"),
    "attempt": ("subject", "system", "condition", "case"),
}


_OF_RUNS: tuple[By, ...] = ("run", "system", "case")
"""Groups that are made of whole runs."""


class _Bucket(NamedTuple):
    runs: list[SpendingRun]
    """Of a group that is made of whole runs."""
    tallies: list[Tally]
    sessions: list[Session]


class _Facts(NamedTuple):
    """The facts of the sweep's own runs and grades."""

    runs: Mapping[str, SpendingRun]
    tallies: list[Tally]
    sessions: list[Session]
    lost: frozenset[str]

    @classmethod
    def of(cls, found: Spending) -> _Facts:
        runs = {run.run_id: run for run in found.runs}

        def is_ours(run_id: str, grade_id: str | None) -> bool:
            run = runs.get(run_id)
            return run is not None and grade_id in (None, run.grade_id)

        tallies = [t for t in found.tallies if is_ours(t.key.run_id, t.key.grade_id)]
        sessions = [s for s in found.sessions if is_ours(s.run_id, s.grade_id)]
        return cls(runs, tallies, sessions, lost_subjects(sessions))


def _tally_key(by: By, tally: Tally, facts: _Facts) -> _Key:
    key = tally.key
    if by == "role":
        return (key.role,)
    if by == "model":
        return key.model, key.role
    run = facts.runs[key.run_id]
    if by == "attempt":
        return key.subject, run.system, run.condition, run.case_id
    return _run_key(by, run)


def _session_key(by: By, session: Session, facts: _Facts) -> _Key:
    if by == "role":
        return (session.bill_role,)
    if by == "model":
        return session.model, session.bill_role
    run = facts.runs[session.run_id]
    if by == "attempt":
        return session.subject, run.system, run.condition, run.case_id
    return _run_key(by, run)


def _run_key(by: By, run: SpendingRun) -> _Key:
    if by == "run":
        return run.run_id, run.grade_id, run.case_id, run.condition, run.system, run.repeat
    return (run.system, run.condition) if by == "system" else (run.case_id,)


def _order(by: By) -> Callable[[_Key], tuple[object, ...]]:
    def place(key: _Key) -> tuple[object, ...]:
        role = str(key[-1])
        if by in ("role", "model"):
            return (_ROLES.index(role) if role in _ROLES else len(_ROLES), *map(str, key))
        if by == "run":
            return key[2], key[4], key[3], key[5], key[0]
        return key

    return place


def _group(key: dict[str, str | int], bucket: _Bucket, lost: frozenset[str]) -> SpendGroup:
    valid = sum(run.is_valid for run in bucket.runs)
    llm, compute = _spend(bucket.tallies, lost), _compute(bucket.sessions, lost)
    return SpendGroup(
        key=key,
        runs=len(bucket.runs) or len(_run_ids(bucket)),
        valid=valid if bucket.runs else None,
        llm=llm,
        compute=compute,
        llm_nanousd_per_valid=_each(llm.nanousd, valid),
        compute_nanousd_per_valid=_each(compute.nanousd, valid),
    )


def _run_ids(bucket: _Bucket) -> set[str]:
    return {t.key.run_id for t in bucket.tallies} | {s.run_id for s in bucket.sessions}


def _each(cost: Total, valid: int) -> float | None:
    return None if cost.value is None or not valid else cost.value / valid


def _spend(tallies: Sequence[Tally], lost: frozenset[str]) -> Spend:
    owed = [tally for tally in tallies if tally.is_owed]
    parts = added(tally.parts for tally in owed)
    guessed = [t for t in owed if t.key.source not in ("provider", "offline")]
    return Spend(
        calls=sum(t.calls for t in owed),
        failed=sum(t.calls for t in tallies if t.key.state == "failed"),
        open=sum(t.calls for t in tallies if t.key.state == "started"),
        offline=sum(t.calls for t in owed if t.key.source == "offline"),
        tokens=parts._asdict(),
        uncounted=sum(t.uncounted for t in owed),
        nanousd=_owed(owed),
        estimated_nanousd=sum(t.nanousd for t in guessed),
        lost_nanousd=_owed([t for t in owed if t.key.subject in lost]),
    )


def _owed(tallies: Iterable[Tally]) -> Total:
    known = unknown = 0
    for tally in tallies:
        known += tally.nanousd
        unknown += tally.calls if tally.key.unpriced is not None else 0
    return Total(value=None if unknown else known, known=known, unknown=unknown)


def _compute(sessions: Sequence[Session], lost: frozenset[str]) -> ComputeSpend:
    return ComputeSpend(
        sessions=len(sessions),
        seconds=round(sum(one.seconds or 0.0 for one in sessions), 3),
        nanousd=_held(sessions),
        lost_nanousd=_held([one for one in sessions if one.subject in lost]),
        unknown_reasons=tuple(sorted({one.reason for one in sessions if one.nanousd is None})),
    )


def _held(sessions: Iterable[Session]) -> Total:
    known = unknown = 0
    for one in sessions:
        known += one.nanousd or 0
        unknown += one.nanousd is None
    return Total(value=None if unknown else known, known=known, unknown=unknown)


def _estimated_share(spend: Spend) -> float | None:
    known = spend.nanousd.known
    return spend.estimated_nanousd / known if known else None


def _unpriced(owed: Iterable[Tally]) -> tuple[UnpricedModel, ...]:
    calls: dict[tuple[str, str], int] = {}
    for tally in owed:
        if tally.key.unpriced is not None:
            place = tally.key.model, tally.key.unpriced
            calls[place] = calls.get(place, 0) + tally.calls
    return tuple(
        UnpricedModel(model=model, calls=calls[model, reason], reason=reason)
        for model, reason in sorted(calls)
    )


def _warnings(total: SpendGroup) -> Iterable[str]:
    share = _estimated_share(total.llm)
    if share is not None and share > MOST_ESTIMATED:
        yield f"{100 * share:.1f} % of the known cost is estimated: no provider counted its tokens"
    if unknown := total.llm.nanousd.unknown:
        yield f"the cost of {unknown:,} calls is unknown; sums without them are lower bounds"
    if total.llm.open:
        yield f"{total.llm.open:,} calls have not ended and are in no sum"
