"""Has a case earned its place? `check_case` runs the admission rules A1 to A22 on a loaded package.

Each rule is a function of the `Bench`, which runs the evaluator and remembers what it said. A rule
that needs a rebuild or a model is reported with ok None and the reason; nothing is left out
silently.
"""

from collections.abc import Callable, Collection

from fde_ray.cases.admission.bench import Bench, Evaluate, RuleResult
from fde_ray.cases.admission.documents import answerable, package_complete, text_leaks, two_worlds
from fde_ray.cases.admission.judging import Covers, covers_by_words, judge_set
from fde_ray.cases.admission.mutations import one_rule_each, rules_have_mutants
from fde_ray.cases.admission.robustness import deterministic, metamorphic
from fde_ray.cases.admission.scores import (
    counterfactual,
    do_nothing_is_worthless,
    double_entry,
    gates_are_not_all,
    greedy_leaves_room,
    literal_fails,
    qualitative_is_enough,
    reference_is_exact,
    shortcuts_fail,
)
from fde_ray.cases.records import Case

__all__ = ["RULES", "Bench", "RuleResult", "check_case"]

RULES: tuple[str, ...] = tuple(f"A{number}" for number in range(1, 23))
_CHECKS: dict[str, Callable[[Bench], RuleResult]] = {
    "A1": package_complete,
    "A2": reference_is_exact,
    "A3": do_nothing_is_worthless,
    "A4": literal_fails,
    "A5": gates_are_not_all,
    "A6": counterfactual,
    "A7": one_rule_each,
    "A8": greedy_leaves_room,
    "A11": two_worlds,
    "A12": text_leaks,
    "A13": answerable,
    "A14": qualitative_is_enough,
    "A15": shortcuts_fail,
    "A16": rules_have_mutants,
    "A17": metamorphic,
    "A18": double_entry,
    "A19": deterministic,
}
_ELSEWHERE = {
    "A9": "not run here: needs other solvers and minutes (rebuild job)",
    "A10": "not run here: needs the solver in a sandbox (rebuild job)",
    "A21": "not run here: needs a customer model",
    "A22": "not run here: needs an agent model",
}


def check_case(
    case: Case,
    *,
    rules: Collection[str] | None = None,
    covers: Covers | None = None,
    evaluate: Evaluate | None = None,
    progress: Callable[[RuleResult], None] | None = None,
) -> list[RuleResult]:
    """Return one result per rule, in order; `ok` None means not decided here, with the reason.

    rules: which ones (None = all; an unknown name is a ValueError). covers: does a question cover a
    point (None = overlap of words). evaluate: runs the evaluator on files (None = a subprocess).
    """
    unknown = sorted(set(rules or ()) - set(RULES))
    if unknown:
        raise ValueError(f"no admission rule {unknown[0]!r}; rules are A1 to A22")
    bench = Bench(case, evaluate)
    results = []
    for rule in RULES:
        if rules is not None and rule not in rules:
            continue
        if rule in _ELSEWHERE:
            result = RuleResult(rule=rule, ok=None, detail=_ELSEWHERE[rule])
        elif rule == "A20":
            result = judge_set(bench, covers or covers_by_words)
        else:
            result = _CHECKS[rule](bench)
        results.append(result)
        if progress is not None:
            progress(result)
    return results
