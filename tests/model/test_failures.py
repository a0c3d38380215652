"""The failure table is whole, and infrastructure trouble never becomes a score."""

from __future__ import annotations

from fde_ray.model.failures import FAILURES, FailureKind, Fault
from fde_ray.model.states import Phase, SolveEnd


def test_every_kind_has_one_row_with_a_sentence() -> None:
    assert set(FAILURES) == set(FailureKind)
    assert all(rule.text.endswith(".") for rule in FAILURES.values())


def test_the_agents_own_ends_are_graded_and_never_retried() -> None:
    for kind, rule in FAILURES.items():
        if rule.fault is Fault.AGENT:
            assert (kind, rule.graded, rule.retried) == (kind, True, False)


def test_trouble_of_ours_or_a_provider_is_never_graded() -> None:
    for kind, rule in FAILURES.items():
        if rule.fault in (Fault.OURS, Fault.PROVIDER):
            assert (kind, rule.graded) == (kind, False)


def test_only_three_solve_ends_leave_a_run_ungraded() -> None:
    ungraded = {end.value for end in SolveEnd if not end.is_graded}
    assert ungraded == {"cancelled", "infra_lost", "isolation_lost"}


def test_terminal_phases() -> None:
    assert {p.value for p in Phase if p.is_terminal} == {"done", "cancelled", "quarantined"}
