"""Every place where the paper is silent or we differ from it: one table, also shown as a page.

`python -m fde_ray.protocol.deviations` prints docs/deviations.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

from .facts import Facts

SILENT = "silent"


def _always(_: Facts) -> bool:
    return True


def _asking(facts: Facts) -> bool:
    return facts.has_questions


class Deviation(NamedTuple):
    """One choice of ours. `rule`: number in our protocol; `paper`: the section, or "silent"."""

    key: str
    rule: int
    paper: str
    choice: str
    setting: str
    """What restores or changes it; "none" where nothing does."""
    when: Callable[[Facts], bool] = _always


DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        "own_cases",
        1,
        "5.1 (49 cases)",
        "The case packages are our own, built after the paper's description of its cases.",
        "`cases` of the sweep",
    ),
    Deviation(
        "own_scaffold",
        1,
        "5.1",
        "The run's scaffold is none of those that the paper evaluates.",
        "`systems[].scaffold`",
        lambda f: not f.paper_scaffold,
    ),
    Deviation(
        "other_limits",
        1,
        "A.3",
        "Time, rounds or pushes differ from 43,200 s, 30 and 3, or steps are capped for every "
        "scaffold.",
        "`limits.time`, `limits.rounds`, `limits.pushes`, `limits.steps`",
        lambda f: not f.paper_limits,
    ),
    Deviation(
        "budget",
        1,
        SILENT,
        "A money budget is set; a run that it stops or shortens has a status of its own and is "
        "never compared as if whole. Off in the paper presets.",
        "`budget_usd_per_run`",
        lambda f: f.has_budget,
    ),
    Deviation(
        "no_native_channel",
        2,
        "A.9.1",
        "A native request in a run whose channel is text, or that has none, gets the exhausted "
        "message and is logged; it does not move the run to solving.",
        "`systems[].channel`",
    ),
    Deviation(
        "oracle_draw",
        3,
        "A.6 (construction only in the artifact)",
        "p is an integer percent and ceil(p*N/100) points are drawn: the first by SHA-256 of "
        "`12345:<case>:<repeat>:<point>`, the same for all systems.",
        "none",
        lambda f: f.oracle,
    ),
    Deviation(
        "own_prompts",
        4,
        "A.9",
        "The prompt texts carry the paper's rules in our own words, and the final message is "
        "asked to name the deliverable.",
        "`prompt_pack`: another pack",
        lambda f: f.builtin_pack,
    ),
    Deviation(
        "paused_clock",
        5,
        SILENT,
        "Outages of ours and of providers pause the agent's clock, up to a cap; charged and "
        "paused time are recorded with causes.",
        "`limits.pause_cap`",
    ),
    Deviation(
        "unit_tails",
        7,
        "A.3 (tails are not mentioned)",
        "Text behind the last question mark joins the last unit; pieces without letter or digit "
        "are dropped; the full-width mark splits too.",
        "none",
        _asking,
    ),
    Deviation(
        "section_reading",
        8,
        "A.9.3",
        "The last heading outside code fences counts, up to the next heading; bullets and numbers "
        "are stripped; an indented line joins its bullet, a fenced block the question above it; "
        "lines without letter or digit are skipped; only `none` counts as no section.",
        "none",
        _asking,
    ),
    Deviation(
        "detector_ties",
        8,
        "A.9.3",
        "A tie or no returned ballot means not asking.",
        "none",
        _asking,
    ),
    Deviation(
        "detector_list",
        8,
        SILENT,
        "The questions are those of the first asking ballot in panel order.",
        "none",
        _asking,
    ),
    Deviation(
        "detector_contradictions",
        8,
        "A.9.3 (what is malformed is not defined)",
        "A ballot whose verdict and question list contradict each other is malformed.",
        "none",
        _asking,
    ),
    Deviation(
        "detector_models",
        8,
        "A.9.3 (five models, not named)",
        "The extraction models detect questions.",
        "`detectors`",
        lambda f: f.has_questions and not f.own_detectors,
    ),
    Deviation(
        "text_in_every_channel",
        9,
        "A.9.1, A.9.3",
        "In runs with a native or callback channel a plain text reply is read by the text rules "
        "too, since the shared prompt promises it.",
        "none",
        _asking,
    ),
    Deviation(
        "empty_entries",
        9,
        SILENT,
        "A native entry without question and header is not asked; its answer is the placeholder.",
        "none",
        _asking,
    ),
    Deviation(
        "extra_round",
        11,
        "A.3, A.9.3",
        "The batch above the round limit gets the exhausted message, moves the run to solving, "
        "and is logged outside Q.",
        "`limits.rounds`",
        _asking,
    ),
    Deviation(
        "identical_batches",
        11,
        "A.9.3 (triggers the move)",
        "A batch equal to any earlier one, apart from case, spaces and punctuation at the ends, "
        "is not answered, uses no round and is outside Q.",
        "none",
        _asking,
    ),
    Deviation(
        "asking_after_move",
        11,
        SILENT,
        "After the move to solving a reply that asks counts as a stop.",
        "none",
        _asking,
    ),
    Deviation(
        "cut_rounds",
        11,
        SILENT,
        "A round that the clock cuts off counts with all its units; open answers stay empty.",
        "none",
        _asking,
    ),
    Deviation(
        "deliverable_test",
        12,
        SILENT,
        "Something is delivered when a new regular file lies outside `data/`, other than NOTES.md "
        "and the scaffold's own state.",
        "none",
    ),
    Deviation(
        "other_customer",
        13,
        "A.9.2 (GLM-5.3)",
        "Another model plays the customer.",
        "`customer.model`",
        lambda f: f.has_questions and not f.paper_customer,
    ),
    Deviation(
        "customer_settings",
        13,
        "A.9.2 (10,000 tokens, temperature unset)",
        "The customer's temperature or token limit is set otherwise.",
        "`customer.temperature`, `customer.max_tokens`",
        lambda f: f.has_questions and not f.paper_customer_settings,
    ),
    Deviation(
        "customer_placeholder",
        14,
        "A.9.3 (for OpenCode only)",
        "When a customer call's retries are spent, every scaffold gets the flagged placeholder.",
        "`customer.failure`: placeholder",
        lambda f: f.has_questions and f.customer_failure == "placeholder",
    ),
    Deviation(
        "customer_infra",
        14,
        "A.9.3 (a placeholder)",
        "When a customer call's retries are spent, the attempt is lost and made again.",
        "`customer.failure`: infra",
        lambda f: f.has_questions and f.customer_failure == "infra",
    ),
    Deviation(
        "no_artifact",
        16,
        "Table 17 counts them apart",
        "Nothing delivered, or three routes that failed and no clean output of any: score 0, "
        "invalid, signature `no_artifact`.",
        "none",
    ),
    Deviation(
        "missing_grades",
        16,
        SILENT,
        "Without a quorum, a route lost to the evaluator, the grading sandbox, a provider or the "
        "store leaves the grade missing, to be made again.",
        "none",
    ),
    Deviation(
        "incomplete_quality",
        17,
        "A.3 (all 147 runs were scored)",
        "A case with a null repeat shows its Quality as incomplete with its coverage; nothing is "
        "imputed.",
        "`report --complete-cases`",
        lambda f: not f.complete_cases,
    ),
    Deviation(
        "complete_cases",
        17,
        "A.3 (all 147 runs were scored)",
        "Quality is averaged over the cases without a null repeat.",
        "`report --complete-cases`",
        lambda f: f.complete_cases,
    ),
    Deviation(
        "unrounded_score",
        18,
        "A.3 (which of the agreeing scores is not said)",
        "Scores agree after rounding half to even at four decimals; stored is the unrounded score "
        "of the first agreeing route in panel order, with that route's validity.",
        "none",
    ),
    Deviation(
        "all_routes",
        18,
        "A.3 (the rest is skipped at three)",
        "All five routes run, for an audit.",
        "`panel.panel_stop`: all",
        lambda f: f.all_routes,
    ),
    Deviation(
        "other_panel",
        18,
        "A.3",
        "Other models, or another order, extract than in the paper.",
        "`panel.models`",
        lambda f: not f.paper_panel,
    ),
    Deviation(
        "hidden_evaluator",
        19,
        "A.9.4 (its source is shown)",
        "An extractor runs the evaluator through a command that returns its JSON; source, truth "
        "and parameters stay hidden.",
        "none",
    ),
    Deviation(
        "result_fields",
        19,
        "A.9.4 (four fields)",
        "`_result.json` also declares `sources`, `unit_factors` and `rows`.",
        "none",
    ),
    Deviation(
        "first_score_binds",
        19,
        "A.9.4 (told, not enforced)",
        "An output that differs from the one that was scored first makes the route fail.",
        "none",
    ),
    Deviation(
        "panel_limits",
        19,
        SILENT,
        "An extractor has a limit of time and of steps.",
        "`panel.time`, `panel.steps`",
    ),
    Deviation(
        "programs_apart",
        20,
        SILENT,
        "A delivered program runs in a sandbox of its own, on one hidden instance at a time; the "
        "evaluator reads its answers. One that fails on an instance has no answer to it.",
        "`[program]` of the case",
        lambda f: f.executable,
    ),
    Deviation(
        "decision_rows",
        21,
        "A.9.4 (rows outside the graded set are dropped)",
        "Where the schema says that the set of rows is an answer, every row is kept.",
        "`row_set` of the case's schema",
    ),
    Deviation(
        "checked_provenance",
        22,
        "A.3 (how it is rejected is not said)",
        "A program of ours, not a model, checks where the extracted values come from.",
        "none",
    ),
    Deviation(
        "unchecked_formats",
        22,
        SILENT,
        "Files of a format that the checker cannot read vote unchecked.",
        "none",
        lambda f: f.unchecked_formats,
    ),
    Deviation(
        "evaluator_fault",
        23,
        "A.7 (recorded as 0)",
        "An evaluator that crashes, hangs or prints no usable result leaves the grade missing.",
        "`panel.evaluator_exception`: zero restores the paper",
        lambda f: f.evaluator_exception == "fault",
    ),
    Deviation(
        "passthrough",
        24,
        SILENT,
        "A deliverable that already has the target form is scored without an extractor, as a "
        "quorum of its own. Off in the paper presets.",
        "`panel.passthrough`",
        lambda f: f.passthrough,
    ),
    Deviation(
        "capped_quality",
        25,
        "4.2 (printed uncapped)",
        "A capped column stands beside the uncapped one.",
        "none",
    ),
    Deviation(
        "other_judges",
        26,
        "4.1 (the extraction models)",
        "Other models than the extraction routes judge coverage.",
        "`judges`",
        lambda f: f.has_questions and f.own_judges,
    ),
    Deviation(
        "matched_units",
        27,
        "A.3",
        "Cited numbers outside the unit list are dropped; a covered point may be left without a "
        "matched unit.",
        "none",
        _asking,
    ),
    Deviation(
        "zero_ask_f1",
        28,
        SILENT,
        "With Precision and Recall both 0, Ask-F1 is 0.",
        "none",
        _asking,
    ),
    Deviation(
        "percentile_bootstrap",
        30,
        "A.4 (the kind is not said)",
        "Bootstrap intervals are percentile intervals.",
        "none",
    ),
    Deviation(
        "signature_codes",
        31,
        "A.7 (by recorded text)",
        "Signatures follow the evaluator's stage and violation codes; codes that begin with "
        "`fatal` are fatal checks; a valid zero has no signature.",
        "none",
    ),
)


def active(facts: Facts) -> tuple[str, ...]:
    """Return the keys of the deviations that were active in a run, in table order."""
    return tuple(deviation.key for deviation in DEVIATIONS if deviation.when(facts))


def markdown() -> str:
    """Return docs/deviations.md. "default": active in a run of the main paper preset."""
    default = set(active(Facts()))
    rows = [
        f"| {d.rule} | `{d.key}` | {d.paper} | {d.choice} | {d.setting} | "
        f"{'yes' if d.key in default else 'no'} |"
        for d in DEVIATIONS
    ]
    return "\n".join([_HEAD, *rows, ""])


_HEAD = """\
# Deviations from the paper

Every place where FDE-Bench says nothing and we chose, and every switch away from it. Generated by
`python -m fde_ray.protocol.deviations`; edit the table there. Each result lists the keys that were
active in it. The last column tells whether a run of the main preset has it.

| rule | key | place in the paper | our choice | setting that restores or changes it | default |
|---|---|---|---|---|---|"""


if __name__ == "__main__":
    sys.stdout.write(markdown())
