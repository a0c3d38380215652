"""Which requirements the questions of a run uncover (protocol rules 26-28; paper A.9.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fde_ray.model.dialogue import Unit
from fde_ray.model.grading import JudgeBallot, PointCoverage

from . import replies
from .packs import PromptPack

TEMPERATURE = 0.0
JUDGES = 5
MAJORITY = 3


class RegisteredPoint(Protocol):
    """What coverage reads of a clarification point."""

    @property
    def key(self) -> str: ...
    @property
    def issue_type(self) -> str: ...
    @property
    def content_domain(self) -> str: ...


def messages(
    pack: PromptPack,
    point_id: str,
    requirement: str,
    triggers: Sequence[str],
    units: Sequence[Unit],
) -> list[dict[str, Any]]:
    """Return one judge's call about one requirement, over the run's complete unit list."""
    user = pack.render(
        "judge_user",
        requirement_id=point_id,
        requirement=requirement.strip(),
        trigger_block=_trigger_block(pack, triggers),
        questions="\n".join(f"{unit.index}. {_one_line(unit.text)}" for unit in units),
    )
    return [
        {"role": "system", "content": pack.render("judge_system")},
        {"role": "user", "content": user},
    ]


def repair_messages(
    pack: PromptPack,
    point_id: str,
    requirement: str,
    triggers: Sequence[str],
    units: Sequence[Unit],
) -> list[dict[str, Any]]:
    """Return the one retry after a malformed reply: the repair text, then the first message."""
    system, user = messages(pack, point_id, requirement, triggers, units)
    repair = pack.render("judge_repair")
    return [system, {**user, "content": f"{repair}\n\n{user['content']}"}]


def parse_ballot(judge: int, model: str, text: str, n_units: int) -> JudgeBallot:
    """Return the ballot; MalformedReply when the reply leaves a doubt.

    Indices outside 1..n_units stay in the ballot; `tally` drops them.
    """
    if n_units < 1:
        raise ValueError("without recorded questions no judge is called")
    value = replies.parse_object(text)
    return JudgeBallot(
        judge=judge,
        model=model,
        covered=replies.boolean(value, "covered"),
        attempted=replies.boolean(value, "attempted"),
        question_indices=replies.integers(value, "question_indices"),
    )


def missing_ballot(judge: int, model: str, error: str) -> JudgeBallot:
    return JudgeBallot(judge=judge, model=model, covered=None, error=error or "no reply")


def tally(
    points: Sequence[RegisteredPoint],
    ballots_by_point: Mapping[str, Sequence[JudgeBallot]],
    units: Sequence[Unit],
) -> tuple[PointCoverage, ...] | None:
    """Return the panel's verdict per point, in registry order.

    None: questions were asked and every ballot of the run is missing. Without questions nothing is
    covered and no ballot is needed.
    """
    ballots = {p.key: tuple(ballots_by_point.get(p.key, ())) for p in points}
    if any(len(of_point) > JUDGES for of_point in ballots.values()):
        raise ValueError(f"a point has more than {JUDGES} ballots")
    returned = [b for of_point in ballots.values() for b in of_point if b.covered is not None]
    if units and points and not returned:
        return None
    return tuple(_point_coverage(point, ballots[point.key], units) for point in points)


def _point_coverage(
    point: RegisteredPoint, ballots: tuple[JudgeBallot, ...], units: Sequence[Unit]
) -> PointCoverage:
    agreeing = [ballot for ballot in ballots if ballot.covered]
    covered = bool(units) and len(agreeing) >= MAJORITY
    turns = {unit.index: unit.turn for unit in units}
    cited = {index for ballot in agreeing for index in ballot.question_indices if index in turns}
    matched = tuple(sorted(cited)) if covered else ()
    return PointCoverage(
        point=point.key,
        issue_type=str(point.issue_type),
        content_domain=str(point.content_domain),
        covered=covered,
        matched_units=matched,
        first_turn=min((turns[index] for index in matched), default=None),
        ballots=ballots,
    )


def _trigger_block(pack: PromptPack, triggers: Sequence[str]) -> str:
    if not triggers:
        return ""
    bullets = "\n".join(f"  - {_one_line(trigger)}" for trigger in triggers)
    return pack.render("judge_triggers", triggers=bullets)


def _one_line(text: str) -> str:
    return " ".join(text.split())
