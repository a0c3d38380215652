"""Each way from what was heard and seen to a verdict."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from fde_ray.sandbox.probes.judging import finding, judged
from fde_ray.sandbox.probes.records import Check, Control, Facts, Group, Verdict
from tests.sandbox.probes.builders import make_attempt, said

YES, NO = said("done"), said("refused", "EPERM")
BROKEN = said("broken", "no such call")
FINE, HARM, UNSEEN = (Check(name="outside", holds=holds) for holds in (True, False, None))
WORKED, FAILED = {"loose pod": YES}, {"loose pod": NO}


@pytest.mark.parametrize(
    ("facts", "verdict", "words"),
    [
        pytest.param(Facts(said=NO, controls=WORKED), "blocked", "EPERM", id="refused"),
        pytest.param(Facts(said=NO), "unproven", "no control", id="refused without a control"),
        pytest.param(
            Facts(said=NO, controls=FAILED), "unproven", "control failed", id="control failed, too"
        ),
        pytest.param(Facts(said=YES, controls=WORKED), "open", "seen", id="got through"),
        pytest.param(
            Facts(said=YES, checks=(FINE,)), "confined", "outside", id="nothing seen outside"
        ),
        pytest.param(
            Facts(said=YES, checks=(UNSEEN,)), "unproven", "outside", id="nobody looked outside"
        ),
        pytest.param(Facts(said=YES, checks=(FINE, HARM)), "open", "outside", id="seen outside"),
        pytest.param(
            Facts(said=NO, controls=WORKED, checks=(HARM,)), "open", "outside",
            id="said that it was refused but was seen outside",
        ),
        pytest.param(
            Facts(said=NO, controls=WORKED, checks=(UNSEEN,)), "blocked", "EPERM",
            id="refused, and nobody needs to look",
        ),
        pytest.param(Facts(said=BROKEN, controls=WORKED), "unproven", "no such call", id="broken"),
        pytest.param(Facts(controls=WORKED), "unproven", "nothing was heard", id="silence"),
        pytest.param(
            Facts(absent="there is no decoy", said=NO, controls=WORKED), "unproven", "no decoy",
            id="no target",
        ),
    ],
)  # fmt: skip
def test_an_attempt_is_judged_by_its_word_its_control_and_what_was_seen(
    facts: Facts, verdict: str, words: str
) -> None:
    found = judged(make_attempt(expected=Verdict.CONFINED), facts)
    assert found[0] == verdict
    assert words in found[1]


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        pytest.param(Facts(controls=WORKED, checks=(FINE,)), "contained", id="killed, no harm"),
        pytest.param(Facts(said=YES, controls=WORKED, checks=(FINE,)), "contained", id="no harm"),
        pytest.param(Facts(controls=WORKED, checks=(FINE, HARM)), "open", id="harm"),
        pytest.param(Facts(controls=WORKED, checks=(FINE, UNSEEN)), "unproven", id="unseen"),
        pytest.param(Facts(controls=WORKED), "unproven", id="nobody looked"),
        pytest.param(Facts(controls=FAILED, checks=(FINE,)), "unproven", id="control failed"),
        pytest.param(Facts(checks=(FINE,)), "unproven", id="no control"),
    ],
)
def test_a_greedy_attempt_is_judged_by_the_harm_it_does(facts: Facts, verdict: str) -> None:
    attempt = make_attempt(
        expected=Verdict.CONTAINED, group=Group.RESOURCES, control=Control.LARGER
    )
    assert judged(attempt, facts)[0] == verdict


@pytest.mark.parametrize("control", [Control.OWN, Control.COLLECTED])
def test_a_control_within_the_attempt_needs_no_pod_of_its_own(control: Control) -> None:
    assert judged(make_attempt(control=control), Facts(said=NO))[0] is Verdict.BLOCKED


def test_a_control_that_is_not_safe_is_told_with_its_reason() -> None:
    attempt = make_attempt(control=Control.UNSAFE, unsafe="it would reboot the machine")
    found = finding(attempt, "runc", Facts(said=NO))
    assert (found.verdict, found.control) == ("blocked", "not run: it would reboot the machine")


@pytest.mark.parametrize(
    ("expected", "verdict", "is_good"),
    [
        ("blocked", "blocked", True),
        ("confined", "blocked", True),
        ("confined", "confined", True),
        ("blocked", "confined", False),
        ("contained", "unproven", False),
        ("blocked", "open", False),
    ],
)
def test_blocked_is_as_good_as_anything_expected(
    expected: Any, verdict: Any, is_good: bool
) -> None:
    found = finding(make_attempt(), "runc", Facts()).evolve(expected=expected, verdict=verdict)
    assert found.is_as_expected is is_good


@pytest.mark.parametrize(
    "changes",
    [
        {"control": Control.UNSAFE},
        {"unsafe": "it would"},
        {"group": Group.NETWORK, "control": Control.UNSAFE, "unsafe": "it would"},
        {"id": "Two words"},
        {"call": "os.system; rm"},
    ],
)
def test_an_attempt_without_a_good_reason_for_its_control_is_refused(changes: Any) -> None:
    with pytest.raises(ValidationError):
        make_attempt(**changes)
