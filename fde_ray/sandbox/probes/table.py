"""The findings as a table that a person reads. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from .records import Attempt, Finding


def table(attempts: Sequence[Attempt], findings: Sequence[Finding]) -> str:
    """Return one line an attempt: what, what is expected, its control, and each runtime."""
    runtimes = list(dict.fromkeys(each.runtime for each in findings))
    by_place = {(each.attempt, each.runtime): each for each in findings}
    rows = [["attempt", "expected", "control", *runtimes]]
    for attempt in attempts:
        found = [by_place[attempt.id, runtime] for runtime in runtimes]
        control = attempt.control.value
        rows.append([attempt.id, attempt.expected.value, control, *map(_verdict, found)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(w.ljust(n) for w, n in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([*lines, *_odd(findings)])


def _verdict(finding: Finding) -> str:
    return finding.verdict.value + ("" if finding.is_as_expected else " !")


def _odd(findings: Sequence[Finding]) -> list[str]:
    odd = [each for each in findings if not each.is_as_expected]
    lines = [f"{e.attempt} on {e.runtime}: {e.verdict.value}: {e.reason}" for e in odd]
    counts = []
    for runtime in dict.fromkeys(each.runtime for each in findings):
        mine = [each for each in findings if each.runtime == runtime]
        good = sum(each.is_as_expected for each in mine)
        counts.append(f"{runtime}: {good} of {len(mine)} as expected")
    return ["", *lines, "; ".join(counts)]
