"""Rules about what deliverables earn: A2 to A6, A8, A14, A15, A18."""

from fde_ray.cases.admission.bench import Bench, RuleResult, verdict
from fde_ray.cases.records import ContentDomain

EMPTY_MAX, BASELINE_MAX, LITERAL_MAX, UNGATED_MAX, SHORTCUT_MAX = 0.10, 0.35, 0.20, 0.65, 0.60
GREEDY_MIN, GREEDY_MAX, QUALITATIVE_MIN = 0.30, 0.85, 0.90


def reference_is_exact(bench: Bench) -> RuleResult:
    """A2: the reference is valid, its raw is bit-equal, its quality exactly 1."""
    run, reference = bench.run(bench.best), bench.case.reference
    result = run.result or {}
    faults = [] if (fault := bench.unanswered(bench.best)) is None else [fault]
    if run.status != 0 or not run.valid:
        said = run.stderr.splitlines()[-1:] or [f"the evaluator ended with {run.status}"]
        told = ", ".join(run.codes or said)
        faults.append(f"not valid: {told}")
    if result.get("raw") != reference.raw:
        faults.append(f"raw {result.get('raw')} is not {reference.raw}")
    if result.get("score") != 1.0 or result.get("quality") != 1.0:
        faults.append(f"quality {result.get('quality')} is not 1")
    if result.get("scoring_hash") != bench.case.scoring_hash:
        faults.append("the evaluator reports another scoring hash than the loader")
    return verdict("A2", faults, "reference scores exactly 1", {"raw": reference.raw})


def do_nothing_is_worthless(bench: Bench) -> RuleResult:
    """A3: nothing, an empty table or a copied input earn next to nothing."""
    faults = _missing(bench, "do_nothing")
    scores = bench.scores("do_nothing", "empty_", "copied_")
    faults += _above(scores, EMPTY_MAX)
    baselines = bench.scores("constant_", "seasonal_")
    faults += _above(baselines, BASELINE_MAX)
    return verdict("A3", faults, "nothing earns nothing", scores | baselines)


def literal_fails(bench: Bench) -> RuleResult:
    """A4: with every point at its naive value."""
    scores = bench.scores("literal")
    faults = _missing(bench, "literal") + _above(scores, LITERAL_MAX)
    return verdict("A4", faults, f"literal at most {LITERAL_MAX}", scores)


def gates_are_not_all(bench: Bench) -> RuleResult:
    """A5: the literal plan with only the format gates told."""
    scores = bench.scores("ungated_literal")
    faults = _missing(bench, "ungated_literal") + _above(scores, UNGATED_MAX)
    return verdict("A5", faults, f"ungated literal at most {UNGATED_MAX}", scores)


def counterfactual(bench: Bench) -> RuleResult:
    """A6: knowing all but one point is invalid or clearly worse, for each alternative."""
    faults: list[str] = []
    measured: dict[str, float] = {"delta": bench.delta}
    for point in bench.case.admission:
        scores = bench.scores(f"knock_{point.key}_")
        if len(scores) < len(point.alternatives):
            faults.append(f"{point.key}: {len(scores)} knock probes of {len(point.alternatives)}")
        faults += _above(scores, 1 - max(bench.delta, min(point.min_drop, 1.0)))
        measured |= scores
    return verdict("A6", faults, "each point counts", measured)


def greedy_leaves_room(bench: Bench) -> RuleResult:
    """A8: greedy with full information is valid and leaves headroom."""
    scores = bench.scores("greedy_full")
    faults = _missing(bench, "greedy_full")
    for name, score in scores.items():
        if not bench.run_probe(name).valid or not GREEDY_MIN <= score <= GREEDY_MAX:
            told = f"{name} {score:.3f} is not in {GREEDY_MIN}-{GREEDY_MAX}"
            why = bench.unanswered(bench.probe_files(name))
            faults.append(told if why is None else f"{told}: {why}")
    return verdict("A8", faults, "greedy is valid and leaves headroom", scores)


def qualitative_is_enough(bench: Bench) -> RuleResult:
    """A14: for scoring points, half and double the weight must still do well."""
    points = [p for p in bench.case.points if p.content_domain is ContentDomain.SCORING]
    if not points:
        return verdict("A14", [], "no scoring points", {})
    told = {record.key: record.qualitative_answer for record in bench.case.admission}
    faults = [f"{p.key}: no qualitative answer" for p in points if not told[p.key]]
    scores = bench.scores("qualitative_")
    if len(scores) < 2:
        faults.append("needs two qualitative probes, for half and double the weight")
    faults += [
        f"{name} {score:.3f} is below {QUALITATIVE_MIN}"
        for name, score in scores.items()
        if score < QUALITATIVE_MIN
    ]
    return verdict("A14", faults, "words are enough for the scoring points", scores)


def shortcuts_fail(bench: Bench) -> RuleResult:
    """A15: shortcuts stay below 0.6 and attempts to cheat earn nothing."""
    shortcuts, bypasses = bench.scores("shortcut_"), bench.scores("bypass_")
    faults = [] if shortcuts and bypasses else ["needs shortcut and bypass probes"]
    faults += _above(shortcuts, SHORTCUT_MAX) + _above(bypasses, 0.0)
    faults += [
        f"{name}: the evaluator failed" for name in bypasses
        if bench.run_probe(name).status not in (0, 3)
    ]  # fmt: skip
    return verdict("A15", faults, "shortcuts and bypasses do not pay", shortcuts | bypasses)


def double_entry(bench: Bench) -> RuleResult:
    """A18: solver and evaluator agree on the reference; each probe earns what its file says."""
    result = bench.run(bench.best).result or {}
    faults = []
    if dict(result.get("components", {})) != bench.case.reference.components:
        faults.append("components of the reference differ from reference.json")
    for name, probe in bench.probes.items():
        run = bench.run_probe(name)
        stage = (run.result or {}).get("stage")
        told = (probe.expect.valid, probe.expect.score, probe.expect.stage)
        if (run.valid, repr(run.score), stage) != told:
            faults.append(f"{name}: says {told}, is {(run.valid, repr(run.score), stage)}")
    return verdict("A18", faults, "every stated number is found again", {})


def _missing(bench: Bench, name: str) -> list[str]:
    return [] if name in bench.probes else [f"there is no probe {name}"]


def _above(scores: dict[str, float], limit: float) -> list[str]:
    return [f"{name} {score:.3f} > {limit:.3f}" for name, score in scores.items() if score > limit]
