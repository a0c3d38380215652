"""Rules about the constraint codes: A7 and A16."""

from fde_ray.cases.admission.bench import Bench, RuleResult, verdict
from fde_ray.cases.admission.branches import branch_coverage

MIN_MUTANTS, MIN_COVERAGE = 2, 0.95


def one_rule_each(bench: Bench) -> RuleResult:
    """A7: a point that decides validity has a code that some mutant raises alone.

    For the other points a neutral mutant must stay valid and change raw or components.
    """
    alone = {m.code for m in bench.mutants if m.side == "outside" and len(m.codes) == 1}
    base = bench.run(bench.best).result or {}
    faults = []
    for point in bench.case.admission:
        if point.effect == "validity":
            if not alone & set(point.rule_codes):
                faults.append(
                    f"{point.key}: no mutant raises one of {list(point.rule_codes)} alone"
                )
            continue
        neutral = [m for m in bench.mutants if m.side == "neutral" and m.code == point.key]
        runs = [bench.run_mutant(mutant) for mutant in neutral]
        if not any(
            run.valid and run.result and run.result["components"] != base.get("components")
            for run in runs
        ):
            faults.append(f"{point.key}: no valid mutant changes raw or components")
    return verdict("A7", faults, "no rule stands in for another", {})


def rules_have_mutants(bench: Bench) -> RuleResult:
    """A16: each constraint code is met just inside and just outside; the evaluator is covered."""
    faults = []
    for code in bench.case.meta.hard_constraints:
        mutants = [mutant for mutant in bench.mutants if mutant.code == code]
        sides = {mutant.side for mutant in mutants}
        if len(mutants) < MIN_MUTANTS or not {"inside", "outside"} <= sides:
            faults.append(f"{code}: needs a mutant just inside and one just outside")
    for mutant in bench.mutants:
        run = bench.run_mutant(mutant)
        if run.codes != tuple(sorted(mutant.codes)) or run.valid != (not mutant.codes):
            faults.append(f"{mutant.name}: raises {list(run.codes)}, not {list(mutant.codes)}")
    share, reason = (None, "") if faults else branch_coverage(bench)
    if share is not None and share < MIN_COVERAGE:
        faults.append(f"branch coverage {share:.3f} < {MIN_COVERAGE}")
    measured = {"mutants": float(len(bench.mutants))}
    if share is not None:
        measured["branch_coverage"] = share
    return verdict("A16", faults, reason or "every rule is met from both sides", measured)
