"""The page is self-contained, harmless whatever agents wrote, and says what must be said."""

from __future__ import annotations

import base64
import hashlib
from html.parser import HTMLParser

import pytest

from fde_ray.analysis.cells import joined
from fde_ray.analysis.html import heat_class, report_html
from fde_ray.analysis.measures import Resampling
from fde_ray.analysis.plots import HEIGHT, WIDTH, score_against_recall
from fde_ray.analysis.reading import run_to_read
from fde_ray.analysis.summary import summary
from fde_ray.model.failures import FailureKind
from fde_ray.model.result import RunResult
from fde_ray.model.states import GradeState, Phase
from tests.analysis.builders import (
    make_cost,
    make_metrics,
    make_plan,
    make_planned,
    make_point,
    make_result,
    make_round,
    make_unfinished,
)
from tests.analysis.hostile import ATTACK, make_hostile_result

FEW = Resampling(resamples=20)
VOID = {"meta", "img", "br", "hr", "link", "input"}
CALLS_OUT = {"src", "srcset", "action", "formaction", "data", "poster", "background", "xlink:href"}
LOADS = {"script", "link", "iframe", "object", "embed", "base", "form", "img", "image", "use"}


class Page(HTMLParser):
    """The tags, attributes and visible text of a page; fails on unbalanced tags."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.style = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            self.style += data
        else:
            self.text.append(data)

    @property
    def visible(self) -> str:
        return " ".join(" ".join(self.text).split())


def page_of(results: list[RunResult], **options: object) -> tuple[str, Page]:
    plan = make_plan(results)
    text = report_html(results, plan, of=summary(results, plan, resampling=FEW), **options)  # type: ignore[arg-type]
    return text, Page(text)


def sample() -> list[RunResult]:
    return [
        make_result(
            case,
            system,
            condition=condition,
            score=score,
            rounds=(make_round(1, ("Which calendar?", "The plant's.")),),
            coverage=(make_point("calendar", covered=score > 0.5),),
            metrics=make_metrics(recall=score) if condition == "interact_req" else None,
            cost=(make_cost(),),
            deviations=("d1",),
        )
        for case in ("017", "036")
        for condition in ("hidden", "interact_req")
        for system, score in (("weak", 0.25), ("strong", 1.0))
    ]


@pytest.mark.parametrize("hostile", [False, True], ids=["ordinary", "hostile"])
def test_the_page_loads_nothing_and_runs_nothing(hostile: bool) -> None:
    _, page = page_of([make_hostile_result()] if hostile else sample())
    for tag, attributes in page.tags:
        assert tag not in LOADS
        assert not CALLS_OUT & set(attributes)
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        assert (attributes.get("href") or "#").startswith("#")
    assert "url(" not in page.style
    assert "@import" not in page.style


def test_the_policy_allows_this_style_sheet_alone() -> None:
    _, page = page_of(sample())
    (policy,) = [
        a["content"] or ""
        for tag, a in page.tags
        if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    ]
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def test_hostile_text_is_shown_as_text_with_its_escapes_spelled_out() -> None:
    text, page = page_of([make_hostile_result()], deviation_texts={"x": ATTACK})
    assert not any(ord(c) < 32 and c != "\n" for c in text)
    assert "\u202e" not in text
    assert "<script" not in text
    for where in ("question", "answer", "option", "unit", "point", "ballot", "vote", "detail",
                  "notes", "finding", "violation", "summary", "refused", "title", "system",
                  "judge", "route", "deviation", "payer"):  # fmt: skip
        assert f"{where} </style></title>" in page.visible, where
    assert r"\x1b[2J" in page.visible
    assert r"\u202egnp.exe" in page.visible
    assert "{{ 7*7 }}" in page.visible


def test_huge_dialogues_are_cut_and_say_so() -> None:
    text, page = page_of([make_hostile_result()])
    assert len(text) < 300_000
    assert "(1996005 more characters)" in page.visible
    assert "440 more questions are not shown." in page.visible
    assert "159 more rounds are not shown." in page.visible


def test_the_page_does_not_depend_on_the_order_of_results() -> None:
    results = sample()
    plan = make_plan(results)
    whole = summary(results, plan, resampling=FEW)
    assert report_html(results, plan, of=whole) == report_html(
        results[::-1], plan[::-1], of=summary(results[::-1], plan[::-1], resampling=FEW)
    )


def test_offline_roles_are_labelled() -> None:
    _, page = page_of([make_result(offline=("customer", "judge"))])
    assert "OFFLINE: smoke and regression, not a model result (roles: customer, judge)" in (
        page.visible
    )


def test_an_unsafe_sandbox_is_labelled() -> None:
    _, page = page_of([make_result(unsafe_sandbox=True)])
    assert "UNSAFE: at least one run had no sandbox" in page.visible


def test_real_runs_carry_no_label() -> None:
    _, page = page_of(sample())
    assert "OFFLINE" not in page.visible
    assert "UNSAFE" not in page.visible


def test_every_section_is_there_and_linked() -> None:
    _, page = page_of(sample(), generated_at="2026-01-01T00:00:00Z")
    ids = {a["id"] for _, a in page.tags if "id" in a}
    links = {(a["href"] or "")[1:] for tag, a in page.tags if tag == "a"}
    assert links <= ids
    for word in ("Leaderboard", "Score against recall", "Cost by role", "One dialogue",
                 "Deviations active", "pass@1", "pass^1", "KQC1", "2026-01-01"):  # fmt: skip
        assert word in page.visible, word


def test_deviations_are_listed_with_their_sentence() -> None:
    _, page = page_of(sample(), deviation_texts={"d1": "We do it so."})
    assert "d1 : We do it so." in page.visible


def test_an_empty_sweep_still_gives_a_page() -> None:
    page = Page(report_html([], []))
    for sentence in ("No sweep", "Nothing was planned.", "No run asked a question.",
                     "No calls are on record.", "No run was judged.", "None is on record.",
                     "No condition with a question channel has scores and Recall."):  # fmt: skip
        assert sentence in page.visible, sentence


def test_null_reasons_stand_in_the_grid_as_words() -> None:
    results = [
        make_result("017", repeat=1, score=0.5),
        make_result(
            "017",
            repeat=2,
            score=None,
            grade=GradeState.GRADE_MISSING,
            outcome=FailureKind.EVALUATOR_TIMEOUT,
        ),
        make_result("036", repeat=1, score=0.0, zero_signature="constraint"),
    ]
    plan = [
        *make_plan(results),
        make_unfinished(
            "036", repeat=2, phase=Phase.QUARANTINED, failure=FailureKind.SANDBOX_START
        ),
        make_unfinished("045", system="beta"),
    ]
    text = report_html(results, plan)
    page = Page(text)
    for words in ("2: grade missing", "1: constraint", "2: quarantined", "pending", "not planned",
                  "partial", "2 of 4 scored", "sandbox start 1"):  # fmt: skip
        assert words in page.visible, words
    assert "The sandbox did not start." in text
    assert "nan" not in page.visible.lower().split()


def test_unknown_cost_is_a_lower_bound_and_never_zero() -> None:
    results = [
        make_result("017", cost=(make_cost(cost=2_000_000_000),)),
        make_result("036", cost=(make_cost(cost=None), make_cost("judge", None))),
    ]
    _, page = page_of(results)
    assert "≥ $2.0000 (1 unknown)" in page.visible
    assert "unknown" in page.visible


def test_the_run_to_read_is_the_one_with_most_covered_points() -> None:
    asked = (make_round(1, ("a?", "b")),)
    two = (make_point("a", covered=True), make_point("b", covered=True))
    results = [
        make_result("017", "a", coverage=two),  # covered without a recorded question
        make_result("017", "b", rounds=asked, coverage=two[:1]),
        make_result("036", "c", rounds=asked, coverage=two),
        make_result("017", "d", rounds=asked, coverage=two),
    ]
    chosen = run_to_read(joined(results, make_plan(results)))
    assert chosen is not None
    assert chosen.system == "d"
    assert run_to_read(joined(results[:1], make_plan(results[:1]))) is None


def test_a_silent_sweep_has_no_dialogue_and_an_unjudged_one_says_so() -> None:
    _, page = page_of([make_result(rounds=(make_round(1, ("a?", "b")),), coverage=None)])
    assert "No judge ballot is on record." in page.visible
    assert "No extraction route is on record." in page.visible


def test_two_systems_of_one_run_are_both_shown() -> None:
    result = make_result("017", "alpha")
    page = Page(report_html([result], [make_planned(result), make_planned(result, system="twin")]))
    assert "twin" in page.visible


@pytest.mark.parametrize("extreme", [1e300, 1e-300, -5.0, 1.7976931348623157e308, 0.0])
def test_extreme_scores_stay_inside_the_plot(extreme: float) -> None:
    results = [make_result("017", score=extreme), make_result("036", score=0.5)]
    plot = score_against_recall(summary(results, make_plan(results), resampling=FEW))
    assert plot is not None
    marks = [m for s in plot.series for m in (*s.runs, *([s.mean] if s.mean else []))]
    assert all(0 <= m.x <= WIDTH and 0 <= m.y <= HEIGHT for m in marks)
    assert 2 <= len(plot.y_ticks) <= 13


def test_marks_at_one_place_are_set_side_by_side() -> None:
    results = [make_result("017", f"s{i:02}") for i in range(30)]
    plot = score_against_recall(summary(results, make_plan(results), resampling=FEW))
    assert plot is not None
    places = {(s.mean.x, s.mean.y) for s in plot.series if s.mean}
    assert len(places) == 30
    assert all(0 <= x <= WIDTH for x, _ in places)


def test_runs_too_many_to_tell_apart_are_left_out_of_the_plot() -> None:
    results = [make_result("017", repeat=i + 1) for i in range(401)]
    _, page = page_of(results)
    assert "the 401 single runs are too many" in page.visible
    assert not [a for tag, a in page.tags if tag == "circle"]


def test_series_of_many_systems_differ_by_colour_and_shape() -> None:
    results = [make_result("017", f"s{i:02}") for i in range(18)]
    plot = score_against_recall(summary(results, make_plan(results), resampling=FEW))
    assert plot is not None
    assert len({(s.colour, s.shape) for s in plot.series}) == 18


@pytest.mark.parametrize(
    ("score", "status", "expected"),
    [
        (None, "pending", "wait"),
        (None, "no_majority", "null"),
        (0.0, "scored", "zero"),
        (1e-9, "scored", "h0"),
        (0.999, "scored", "h4"),
        (1.0, "scored", "top"),
        (7.0, "scored", "top"),
    ],
)
def test_colours_follow_the_score(score: float | None, status: str, expected: str) -> None:
    assert heat_class(score, status) == expected
