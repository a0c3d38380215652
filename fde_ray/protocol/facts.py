"""The facts of a run that decide which deviations from the paper were active in it."""

from __future__ import annotations

from collections.abc import Sequence

from fde_ray.model.base import Record
from fde_ray.model.grading import Route
from fde_ray.model.plan import RunPlan
from fde_ray.model.specs import Customer, Limits

PAPER_CUSTOMER = "glm-5.3"
PAPER_PANEL = (
    "glm-5.2",
    "qwen3.8-27b",
    "deepseek-v4-flash",
    "gemini-3.6-flash",
    "grok-4.5",
)
PAPER_SCAFFOLDS = frozenset(
    {"opencode", "openhands", "codex", "gemini", "kimi", "deepseek-harness"}
)


class Facts(Record):
    """The defaults are those of the paper presets under Interact-Req."""

    has_questions: bool = True
    oracle: bool = False
    builtin_pack: bool = True
    paper_scaffold: bool = True
    paper_customer: bool = True
    paper_customer_settings: bool = True
    paper_panel: bool = True
    own_detectors: bool = False
    """The detectors are other models than the extraction routes."""
    own_judges: bool = False
    """The judges are other models than the extraction routes."""
    paper_limits: bool = True
    has_budget: bool = False
    customer_failure: str = "placeholder"
    all_routes: bool = False
    passthrough: bool = False
    evaluator_exception: str = "fault"
    unchecked_formats: bool = False
    """A route voted whose files our provenance checker cannot read."""
    executable: bool = False
    """What is delivered is a program."""
    complete_cases: bool = False


def facts_of(plan: RunPlan, routes: Sequence[Route] = (), *, executable: bool = False) -> Facts:
    """Return the facts of one graded run. executable: the kind of its case."""
    return Facts(
        has_questions=plan.condition.kind.has_questions,
        oracle=plan.condition.percent is not None,
        builtin_pack=plan.prompt_pack == "builtin",
        paper_scaffold=plan.system.scaffold in PAPER_SCAFFOLDS,
        paper_customer=_bare_model(plan.customer.model) == PAPER_CUSTOMER,
        paper_customer_settings=_is_paper_customer_setting(plan.customer),
        paper_panel=tuple(map(_bare_model, plan.panel.models)) == PAPER_PANEL,
        own_detectors=plan.detectors != plan.panel.models,
        own_judges=plan.judges != plan.panel.models,
        paper_limits=_are_paper_limits(plan.limits),
        has_budget=plan.budget_usd_per_run is not None,
        customer_failure=plan.customer.failure,
        all_routes=plan.panel.panel_stop == "all",
        passthrough=plan.panel.passthrough,
        evaluator_exception=plan.panel.evaluator_exception,
        unchecked_formats=any(
            r.provenance is not None and r.provenance.verdict == "unchecked" for r in routes
        ),
        executable=executable,
    )


def _bare_model(name: str) -> str:
    return name.rpartition("/")[2].casefold()


def _is_paper_customer_setting(customer: Customer) -> bool:
    return customer.temperature is None and customer.max_tokens == 10_000


def _are_paper_limits(limits: Limits) -> bool:
    return (limits.time, limits.rounds, limits.pushes, limits.steps) == (43_200.0, 30, 3, None)
