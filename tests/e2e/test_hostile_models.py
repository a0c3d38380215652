"""Judges, detectors, customers, extractors and providers that misbehave, over a real endpoint.

A reply that leaves a doubt is a missing ballot or vote, or a flagged stand-in: never a guess.
"""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fde_ray.model.failures import FailureKind
from fde_ray.model.grading import Route, RouteStatus
from fde_ray.model.result import RunResult
from fde_ray.model.states import GradeState
from tests.e2e.fake_models import (
    FakeModels,
    Messages,
    Raw,
    Reply,
    Says,
    Script,
    fake_models,
    in_turn,
    runs,
    says,
)
from tests.e2e.hostile import (
    BEST,
    CASE,
    MARKER,
    Done,
    by_system,
    fde_ray,
    minimal,
    write_profile,
    write_spec,
)

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
]

MIB = 1 << 20
BROKEN = Raw(b'{"error": {"message": "overloaded"}}', 500)
BUSY = Raw(b"slow down", 429, {"retry-after": "1"})


WORSE = (CASE / "sealed/probes/oracle_75/files/schedule.csv").read_text()
WORSE_SCORE = 0.7720197044334975
HANDS_OVER = Says(calls=(("write", {"path": "schedule.csv", "text": WORSE}),))
DONE = says("The schedule is in schedule.csv.")


def busy_then(reply: Reply) -> Script:
    """Say 429 at the first call of each kind, then `reply`."""
    seen: set[str] = set()

    def script(messages: Messages) -> Reply:
        key = json.dumps(messages)
        if key in seen:
            return reply
        seen.add(key)
        return BUSY

    return script


YES = '{"covered": true, "attempted": true, "question_indices": [1, 99, -3]}'
NO = '{"covered": false, "attempted": true, "question_indices": []}'
JUDGES: dict[str, Script] = {
    "j-prose": in_turn(says("I believe that it is covered, yes: covered = true.")),
    "j-fenced": in_turn(says(f"Here you are.\n```json\n{YES}\n```\nDone.")),
    "j-cut": in_turn(says('{"covered": true, "attempted": tr')),
    "j-several": in_turn(says(f"{YES}\n{NO}")),
    "j-types": in_turn(says('{"covered": "true", "attempted": 1, "question_indices": "1"}')),
    "j-empty": in_turn(says("")),
    "j-broken": in_turn(BROKEN),
    "j-busy": busy_then(says(YES)),
    "j-large": in_turn(says(" " * MIB + YES)),
    "j-plain": in_turn(says(YES)),
    "j-garbage": in_turn(Raw(b"<html>\xff\xfe</html>")),
    "j-scores": in_turn(says('{"score": 7}')),
}
ASKING = '{"asking": true, "questions": ["Is length the exit length?", "What is the density?"]}'
DETECTORS: dict[str, Script] = {
    "d-prose": in_turn(says("Yes, it is asking.")),
    "d-fenced": in_turn(says(f"```\n{ASKING}\n```")),
    "d-contradicts": in_turn(says('{"asking": false, "questions": ["Is it?"]}')),
    "d-broken": in_turn(BROKEN),
    "d-busy": busy_then(says(ASKING)),
    "d-cut": in_turn(says('{"asking": true, "quest')),
    "d-empty": in_turn(says("")),
    "d-list": in_turn(says(f"[{ASKING}]")),
}

REPORT = """
    import hashlib, json, shutil, subprocess
    def report(status="success", **more):
        sha = hashlib.sha256(open("/workspace/schedule.csv", "rb").read()).hexdigest()
        with open("/output/_result.json", "w") as file:
            json.dump({"status": status, "notes": "n", "files_found": ["schedule.csv"],
                       "files_normalized": ["schedule.csv"], "unit_factors": {}, "rows": {},
                       "sources": {"schedule.csv": [{"path": "schedule.csv", "sha256": sha}]}}
                      | more, file)
    def copy():
        shutil.copyfile("/workspace/schedule.csv", "/output/schedule.csv")
    def evaluate():
        done = subprocess.run(["evaluate", "/output"], capture_output=True, text=True)
        print(done.returncode, done.stdout, done.stderr)
"""


def extracts(text: str) -> Script:
    program = textwrap.dedent(REPORT) + textwrap.dedent(text)
    return in_turn(runs(f"python3 - <<'THE_END'\n{program}\nTHE_END"), says("done"))


INVENTS = f"""
    open("/output/schedule.csv", "w").write({BEST!r})
    evaluate()
    report()
"""
EXTRACTORS: dict[str, Script] = {
    "x-honest": extracts("copy(); evaluate(); report()"),
    "x-invents": extracts(INVENTS),
    "x-changes": extracts(
        "copy(); evaluate(); open('/output/schedule.csv', 'a').write(' '); report()"
    ),
    "x-silent": extracts("copy(); evaluate()"),
    "x-loops": in_turn(runs("true")),
    "x-prose": in_turn(says("The files look fine, score 1.0.")),
    "x-nonsense": extracts(
        "copy(); evaluate(); report(status='great', files_found=7, rows={'x': -1})"
    ),
    "x-plants": extracts(
        "copy(); report(status='failed'); import os; os.mkdir('/output/_result.json.d');"
        "os.remove('/output/_result.json'); os.symlink('/workspace/schedule.csv',"
        "'/output/_result.json'); os.mkfifo('/output/pipe')"
    ),
    "x-refused": in_turn(Raw(b'{"error": {"message": "context too long"}}', 400)),
}


def names(*of: str) -> list[str]:
    return [f"fake/{name}" for name in of]


ASKS_IN_PASSING = says("Before I start: is the length the exit length, and which density is used?")
ASKS_UNDER_HEADING = says(f"{MARKER}\n\n- Is the length the exit length?\n- Which density?")


def busy_agent() -> Script:
    script, gate = in_turn(HANDS_OVER, DONE), busy_then(says(""))
    return lambda messages: BUSY if gate(messages) is BUSY else script(messages)


AGENTS: dict[str, Script] = {
    "passing": in_turn(ASKS_IN_PASSING, HANDS_OVER, DONE),
    "heading": in_turn(ASKS_UNDER_HEADING, HANDS_OVER, ASKS_IN_PASSING),
    "unknown": in_turn(Raw(b'{"error": {"message": "invalid key sk-123"}}', 401)),
    "long": in_turn(HANDS_OVER, Raw(b'{"error": {"message": "context too long"}}', 400)),
    "away": in_turn(BROKEN),
    "garbage": in_turn(Raw(b"<html>not json</html>")),
    "busy": busy_agent(),
    "half-pair": in_turn(HANDS_OVER, says("All is in schedule.csv. \ud83d")),
    "filtered": in_turn(HANDS_OVER, Says(text="", finish="content_filter")),
    "wrong-calls": in_turn(
        Says(calls=(("launch", {"x": 1}), ("run", {"command": 7}), ("read", {"path": "\0"}))),
        Says(calls=(("edit", {}), ("write", {"path": ".", "text": "x"}), ("list", {"path": "no"}))),
        HANDS_OVER,
        DONE,
    ),
}


CUSTOMERS: dict[str, Script] = {"c-empty": in_turn(says(" \n ")), "c-broken": in_turn(BROKEN)}
SCRIPTS = JUDGES | DETECTORS | EXTRACTORS | AGENTS | CUSTOMERS


class Sweeps(NamedTuple):
    home: Path
    models: FakeModels
    ended: dict[str, Done]

    def result(self, sweep: str, system: str) -> RunResult:
        return by_system(self.home, sweep)[system]


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sweeps]:
    home = tmp_path_factory.mktemp("models")
    ended = {}
    with fake_models(SCRIPTS) as models:
        profile = write_profile(home, models.base_url)
        asking = {"conditions": ["interact_req"]}
        specs = {
            "few": write_spec(
                home,
                "few",
                minimal("passing"),
                **asking,
                customer={"model": "fake/c-empty"},
                detectors=names("d-prose", "d-fenced", "d-contradicts", "d-broken", "d-busy"),
                judges=names("j-prose", "j-fenced", "j-cut", "j-several", "j-types"),
                panel={"models": names("x-invents", "x-honest", "x-changes", *["x-honest"] * 2)},
            ),
            "none": write_spec(
                home,
                "none",
                minimal("heading"),
                **asking,
                customer={"model": "fake/c-broken"},
                detectors=names("d-prose", "d-cut", "d-empty", "d-list", "d-broken"),
                judges=names("j-prose", "j-empty", "j-broken", "j-garbage", "j-scores"),
                panel={"models": names("x-invents", "x-silent", "x-loops", "x-prose", "x-refused")},
            ),
            "most": write_spec(
                home,
                "most",
                minimal("heading"),
                **asking,
                judges=names("j-large", "j-busy", "j-plain", "j-fenced", "j-types"),
                panel={
                    "models": names("x-nonsense", "x-plants", "x-changes", "x-prose", "x-loops")
                },
            ),
            "agents": write_spec(
                home,
                "agents",
                minimal(
                    *("unknown", "long", "away", "garbage"),
                    *("busy", "half-pair", "filtered", "wrong-calls"),
                ),
                limits={"pause_cap": "4s"},
                panel={"passthrough": True},
            ),
            "infra": write_spec(
                home,
                "infra",
                minimal("heading"),
                **asking,
                customer={"model": "fake/c-broken", "failure": "infra"},
            ),
        }
        for name, spec in specs.items():
            ended[name] = fde_ray(home, "sweep", "submit", str(spec), "--profile", str(profile))
        yield Sweeps(home, models, ended)


def route(result: RunResult, number: int) -> Route:
    (found,) = (one for one in result.routes if one.route == number)
    return found


def ballots_by_judge(result: RunResult) -> dict[str, set[bool | None]]:
    assert result.coverage is not None
    found: dict[str, set[bool | None]] = {}
    for point in result.coverage:
        for ballot in point.ballots:
            found.setdefault(ballot.model.removeprefix("fake/"), set()).add(ballot.covered)
            assert ballot.covered is not None or ballot.error
    return found


def test_rule_26_a_doubtful_judge_reply_is_a_missing_ballot(sweeps: Sweeps) -> None:
    assert ballots_by_judge(sweeps.result("few", "passing")) == {
        "j-prose": {None},
        "j-fenced": {True},
        "j-cut": {None},
        "j-several": {None},
        "j-types": {None},
    }


def test_rule_27_one_ballot_of_five_covers_nothing(sweeps: Sweeps) -> None:
    result = sweeps.result("few", "passing")
    assert result.coverage is not None
    assert result.metrics is not None
    assert not any(point.covered for point in result.coverage)
    assert result.metrics.recall.value == 0.0


def test_rule_27_three_ballots_of_five_cover_and_bad_indices_are_dropped(sweeps: Sweeps) -> None:
    result = sweeps.result("most", "heading")
    assert ballots_by_judge(result) == {
        "j-large": {None},
        "j-busy": {True},
        "j-plain": {True},
        "j-fenced": {True},
        "j-types": {None},
    }
    assert result.coverage is not None
    assert {point.matched_units for point in result.coverage} == {(1,)}
    assert result.metrics is not None
    assert result.metrics.recall.value == 1.0


def test_rule_27_without_any_ballot_the_metrics_are_unavailable(sweeps: Sweeps) -> None:
    metrics = sweeps.result("none", "heading").metrics
    assert metrics is not None
    for name in ("recall", "precision", "ask_f1", "kqc1", "atc", "redundant"):
        metric = getattr(metrics, name)
        assert metric.value is None
        assert metric.undefined


def test_rule_08_returned_detector_ballots_alone_decide(sweeps: Sweeps) -> None:
    (one,) = sweeps.result("few", "passing").rounds
    assert [q.text for q in one.questions] == [
        "Is length the exit length?",
        "What is the density?",
    ]
    # Nobody could say that the agent's last words in the other sweep were a question.
    assert len(sweeps.result("none", "heading").rounds) == 1


@pytest.mark.parametrize(("sweep", "system"), [("few", "passing"), ("none", "heading")])
def test_rule_14_a_customer_that_cannot_answer_is_stood_in_for_and_flagged(
    sweeps: Sweeps, sweep: str, system: str
) -> None:
    (one,) = sweeps.result(sweep, system).rounds
    assert [question.placeholder for question in one.questions] == [True, True]
    assert all(question.answer.strip() for question in one.questions)


def test_rule_14_a_customer_that_is_infra_loses_the_attempt_and_never_scores(
    sweeps: Sweeps,
) -> None:
    assert sweeps.ended["infra"].code == 1
    assert by_system(sweeps.home, "infra") == {}
    done = fde_ray(sweeps.home, "sweep", "status", "infra", "--json")
    (status,) = json.loads(done.out)
    assert status["phases"] == {"quarantined": 1}


def test_rule_22_invented_values_and_rule_19_changed_output_cast_no_vote(sweeps: Sweeps) -> None:
    result = sweeps.result("few", "passing")
    assert route(result, 0).failure is FailureKind.PROVENANCE_REJECTED
    assert route(result, 0).vote is None
    assert route(result, 2).failure is FailureKind.EXTRACTOR_CHANGED_OUTPUT
    assert route(result, 2).vote is None
    assert result.chosen_route == 1
    assert (result.grade, result.score) == (GradeState.SCORED, WORSE_SCORE)


def test_rule_18_a_panel_of_failures_is_no_majority_and_no_score(sweeps: Sweeps) -> None:
    for sweep, wanted in (
        (
            "none",
            [
                FailureKind.PROVENANCE_REJECTED,
                FailureKind.EXTRACTOR_OUTPUT,
                FailureKind.EXTRACTOR_ERROR,
                FailureKind.EXTRACTOR_OUTPUT,
                FailureKind.EXTRACTOR_ERROR,
            ],
        ),
        (
            "most",
            [
                FailureKind.EXTRACTOR_OUTPUT,
                FailureKind.EXTRACTOR_OUTPUT,
                FailureKind.EXTRACTOR_CHANGED_OUTPUT,
                FailureKind.EXTRACTOR_OUTPUT,
                FailureKind.EXTRACTOR_ERROR,
            ],
        ),
    ):
        result = sweeps.result(sweep, "heading")
        assert [one.failure for one in result.routes] == wanted
        assert {one.vote for one in result.routes} == {None}
        assert RouteStatus.SUCCESS not in {one.status for one in result.routes[1:2]}
        assert (result.grade, result.score, result.valid) == (GradeState.NO_MAJORITY, None, None)


def test_a_provider_that_fails_is_never_the_agents_fault(sweeps: Sweeps) -> None:
    scored = by_system(sweeps.home, "agents")
    assert sweeps.ended["agents"].code == 1
    assert set(scored) == {"long", "busy", "half-pair", "filtered", "wrong-calls"}
    assert {one.score for one in scored.values()} == {WORSE_SCORE}
    assert scored["long"].solve_end == "agent_error"
    assert scored["filtered"].solve_end == "refused"
    assert scored["busy"].solve_end == scored["wrong-calls"].solve_end == "submitted"
    assert scored["half-pair"].summary == "All is in schedule.csv. \ufffd"
    assert (scored["busy"].paused_s or 0) > 0.5


def test_a_run_set_aside_says_why(sweeps: Sweeps) -> None:
    done = fde_ray(sweeps.home, "results", "ls", "agents", "--json")
    rows = {row["system"]: row for row in json.loads(done.out)}
    assert rows["unknown"]["phase"] == "quarantined", rows
    for name, cause in (("unknown", "401"), ("away", "500"), ("garbage", "not JSON")):
        shown = fde_ray(sweeps.home, "run", "explain", rows[name]["run_id"])
        assert shown.code == 0, shown.err
        assert cause in shown.out, shown.out


def test_no_sweep_left_an_error_of_our_own(sweeps: Sweeps) -> None:
    for name, done in sweeps.ended.items():
        assert "internal error" not in done.err, (name, done.err)
    assert not (sweeps.home / "last-error.txt").exists()
