"""From what was heard and seen of an attempt to its verdict. Pure.

A program's own word counts where it says that it got through; that it failed counts only when a
control got through, and that nothing came of it only when somebody outside looked.
"""

from __future__ import annotations

from collections.abc import Iterable

from .records import Attempt, Check, Control, Facts, Finding, Said, Verdict

_WITHIN = frozenset({Control.OWN, Control.COLLECTED})
"""Controls that are a part of the attempt or of its checks."""


def finding(attempt: Attempt, runtime: str, facts: Facts) -> Finding:
    verdict, reason = judged(attempt, facts)
    return Finding(
        attempt=attempt.id,
        group=attempt.group,
        runtime=runtime,
        expected=attempt.expected,
        verdict=verdict,
        reason=reason,
        control=control_words(attempt, facts),
    )


def judged(attempt: Attempt, facts: Facts) -> tuple[Verdict, str]:
    """Return the verdict and why."""
    if facts.absent:
        return Verdict.UNPROVEN, facts.absent
    harm = next((check for check in facts.checks if check.holds is False), None)
    if harm is not None:
        return Verdict.OPEN, _words(harm)
    unseen = next((check for check in facts.checks if check.holds is None), None)
    if attempt.expected is Verdict.CONTAINED:
        return _contained(attempt, facts, unseen)
    said = facts.said
    if said is None:
        return Verdict.UNPROVEN, "nothing was heard of it"
    if said.outcome == "broken":
        return Verdict.UNPROVEN, f"could not be tried: {said.evidence}"
    if said.outcome == "refused":
        return _refused(attempt, facts, said)
    if not facts.checks:
        return Verdict.OPEN, said.evidence
    if unseen is not None:
        return Verdict.UNPROVEN, _words(unseen)
    return Verdict.CONFINED, f"{said.evidence}; {_listed(facts.checks)}"


def _refused(attempt: Attempt, facts: Facts, said: Said) -> tuple[Verdict, str]:
    missing = _missing_control(attempt, facts)
    if missing:
        return Verdict.UNPROVEN, missing
    return Verdict.BLOCKED, said.evidence


def _contained(attempt: Attempt, facts: Facts, unseen: Check | None) -> tuple[Verdict, str]:
    if unseen is not None:
        return Verdict.UNPROVEN, _words(unseen)
    if not facts.checks:
        return Verdict.UNPROVEN, "nobody looked"
    missing = _missing_control(attempt, facts)
    if missing:
        return Verdict.UNPROVEN, missing
    return Verdict.CONTAINED, _listed(facts.checks)


def _missing_control(attempt: Attempt, facts: Facts) -> str:
    """Return why a failure of the attempt proves nothing; empty when it does."""
    if attempt.control in _WITHIN or attempt.control is Control.UNSAFE:
        return ""
    if any(said.outcome == "done" for said in facts.controls.values()):
        return ""
    if not facts.controls:
        return "no control: nothing was heard of one"
    heard = "; ".join(f"{where}: {said.evidence}" for where, said in facts.controls.items())
    return f"its control failed, too ({heard})"


def control_words(attempt: Attempt, facts: Facts) -> str:
    if attempt.control is Control.UNSAFE:
        return f"not run: {attempt.unsafe}"
    if attempt.control in _WITHIN:
        is_there = facts.said is not None and facts.said.outcome != "broken"
        return attempt.control.value if is_there or facts.checks else "none"
    worked = [where for where, said in facts.controls.items() if said.outcome == "done"]
    if worked:
        return f"{attempt.control.value} ({', '.join(worked)})"
    return "failed" if facts.controls else "none"


def _listed(checks: Iterable[Check]) -> str:
    return "; ".join(_words(check) for check in checks)


def _words(check: Check) -> str:
    return f"{check.name}: {check.evidence}" if check.evidence else check.name
