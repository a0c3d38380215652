"""Whether the clocks of this machine, the API server and a run pod agree.

None of them is asked for the time: what each wrote down must lie between two moments of ours, and
how far it lies outside is the least by which the clocks differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from .checks import Check
from .lookouts import Report

TOLERATED_S = 2.0
"""Charged time is the gateway's; tokens have a lifetime of a minute and more."""
_REMEDY = "let all machines keep time by NTP (chrony, systemd-timesyncd)"


def clock_checks(reports: Sequence[Report]) -> tuple[Check, ...]:
    if not reports:
        return (Check("clocks", False, "not known: no canary came back", "mend the fence first"),)
    server = max((server_skew_s(each) for each in reports), key=abs)
    pods = max((pod_skew_s(each) for each in reports), key=abs)
    return _judged("clock of the API server", server), _judged("clock of run pods", pods)


def server_skew_s(report: Report) -> float:
    """Return the least by which the server's clock is ahead of ours; it tells whole seconds."""
    made_at = datetime.fromisoformat(report.made_at).timestamp()
    return _outside(made_at, report.asked_at - 1, report.made_by)


def pod_skew_s(report: Report) -> float:
    """Return the least by which the pod's clock is ahead of ours; negative = behind."""
    return _outside(report.seen.at, report.asked_at, report.heard_at)


def _outside(moment: float, begin: float, end: float) -> float:
    return min(moment - begin, 0.0) + max(moment - end, 0.0)


def _judged(what: str, skew_s: float) -> Check:
    if abs(skew_s) <= TOLERATED_S:
        return Check(what, True, "agrees with this machine's")
    way = "ahead of" if skew_s > 0 else "behind"
    return Check(what, False, f"at least {abs(skew_s):.0f} s {way} this machine's", _REMEDY)
