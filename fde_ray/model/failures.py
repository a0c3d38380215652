"""The one failure table: kind -> whose fault, retried?, graded?, what the user reads."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Fault(StrEnum):
    """Whose trouble a failure is; a gateway refusal carries the same four words."""

    AGENT = "agent"
    OURS = "ours"
    PROVIDER = "provider"
    BUDGET = "budget"


class FailureKind(StrEnum):
    # the agent's own ends: graded, never re-rolled
    NO_ARTIFACT = "no_artifact"
    AGENT_ERROR = "agent_error"
    AGENT_RESOURCE = "agent_resource"
    AGENT_REFUSED = "agent_refused"
    TIME_LIMIT = "time_limit"
    STEP_LIMIT = "step_limit"
    NO_DELIVERY = "no_delivery"
    # infrastructure of ours: a new attempt, then quarantine
    SANDBOX_START = "sandbox_start"
    SHIM_LOST = "shim_lost"
    PAUSE_CAP = "pause_cap"
    ISOLATION_LOST = "isolation_lost"
    STORE_UNAVAILABLE = "store_unavailable"
    COLLECTION_FAILED = "collection_failed"
    INTERNAL_ERROR = "internal_error"
    # what a cluster does to the pod of a run; a new attempt, too
    UNSCHEDULABLE = "unschedulable"
    IMAGE_PULL = "image_pull"
    NODE_REJECTED = "node_rejected"
    NODE_PRESSURE = "node_pressure"
    NODE_DRAINED = "node_drained"
    NODE_LOST = "node_lost"
    PREEMPTED = "preempted"
    POD_LOST = "pod_lost"
    POD_REPLACED = "pod_replaced"
    POD_RESTARTED = "pod_restarted"
    POD_DEADLINE = "pod_deadline"
    CUSTOMER_FAILED = "customer_failed"
    DETECTOR_FAILED = "detector_failed"
    PROVIDER_UNAVAILABLE = "provider_unavailable"
    PROVIDER_REJECTED = "provider_rejected"
    # grading trouble: grading is retried, agents never run again for it
    EVALUATOR_CRASH = "evaluator_crash"
    EVALUATOR_TIMEOUT = "evaluator_timeout"
    EVALUATOR_OUTPUT = "evaluator_output"
    GRADER_SANDBOX = "grader_sandbox"
    EXTRACTOR_ERROR = "extractor_error"
    EXTRACTOR_TIMEOUT = "extractor_timeout"
    EXTRACTOR_OUTPUT = "extractor_output"
    EXTRACTOR_CHANGED_OUTPUT = "extractor_changed_output"
    PROVENANCE_REJECTED = "provenance_rejected"
    JUDGES_MISSING = "judges_missing"
    # wishes of the user
    BUDGET_EXHAUSTED = "budget_exhausted"
    CANCELLED = "cancelled"


def known_kind(name: str) -> FailureKind:
    """Return the kind of this name; one that this version does not know is unforeseen."""
    return FailureKind(name) if name in set(FailureKind) else FailureKind.INTERNAL_ERROR


class FailureRule(NamedTuple):
    fault: Fault
    retried: bool
    """A new attempt of the same stage follows while the policy allows."""
    graded: bool
    """What the agent left is graded (0 when it left nothing)."""
    text: str
    """One sentence for the user."""


_A, _O, _P, _B = Fault.AGENT, Fault.OURS, Fault.PROVIDER, Fault.BUDGET

FAILURES: dict[FailureKind, FailureRule] = {
    FailureKind.NO_ARTIFACT: FailureRule(
        _A, False, True, "The agent left no deliverable; score 0."
    ),
    FailureKind.AGENT_ERROR: FailureRule(
        _A, False, True, "The agent's program ended by itself with an error."
    ),
    FailureKind.AGENT_RESOURCE: FailureRule(
        _A, False, True, "The agent used up its memory, disk, processes or archive size."
    ),
    FailureKind.AGENT_REFUSED: FailureRule(_A, False, True, "The agent's model refused the task."),
    FailureKind.TIME_LIMIT: FailureRule(
        _A, False, True, "The agent's time was over; what was there is graded."
    ),
    FailureKind.STEP_LIMIT: FailureRule(
        _A, False, True, "The agent used all its steps; what was there is graded."
    ),
    FailureKind.NO_DELIVERY: FailureRule(
        _A, False, True, "The agent stopped without a deliverable after all pushes."
    ),
    FailureKind.SANDBOX_START: FailureRule(_O, True, False, "The sandbox did not start."),
    FailureKind.SHIM_LOST: FailureRule(
        _O, True, False, "The supervising process of the sandbox was lost."
    ),
    FailureKind.PAUSE_CAP: FailureRule(
        _O, True, False, "The run was paused longer than its pause cap."
    ),
    FailureKind.ISOLATION_LOST: FailureRule(
        _O, False, False, "The sandbox reached something it must not reach; the run is quarantined."
    ),
    FailureKind.STORE_UNAVAILABLE: FailureRule(_O, True, False, "The store could not be reached."),
    FailureKind.COLLECTION_FAILED: FailureRule(
        _O, True, False, "The workspace could not be collected."
    ),
    FailureKind.INTERNAL_ERROR: FailureRule(
        _O, True, False, "fde_ray met something unforeseen in this run; its log has the traceback."
    ),
    FailureKind.UNSCHEDULABLE: FailureRule(
        _O, True, False, "No node had room for the run's pod in time."
    ),
    FailureKind.IMAGE_PULL: FailureRule(
        _O, True, False, "The image of the run's pod could not be pulled in time."
    ),
    FailureKind.NODE_REJECTED: FailureRule(_O, True, False, "A node refused the run's pod."),
    FailureKind.NODE_PRESSURE: FailureRule(
        _O, True, False, "A node that ran out of memory or disk put the run's pod out."
    ),
    FailureKind.NODE_DRAINED: FailureRule(
        _O, True, False, "The run's pod was evicted from a node that was being emptied."
    ),
    FailureKind.NODE_LOST: FailureRule(_O, True, False, "The node of the run's pod was lost."),
    FailureKind.PREEMPTED: FailureRule(
        _O, True, False, "The run's pod gave way to a pod of a higher priority."
    ),
    FailureKind.POD_LOST: FailureRule(
        _O, True, False, "The run's pod was deleted by somebody else."
    ),
    FailureKind.POD_REPLACED: FailureRule(
        _O, True, False, "Another pod has taken the name of the run's pod."
    ),
    FailureKind.POD_RESTARTED: FailureRule(
        _O, True, False, "A container of the run's pod was started again, without its work."
    ),
    FailureKind.POD_DEADLINE: FailureRule(
        _O, True, False, "The run's pod outlived all its limits and was ended by its deadline."
    ),
    FailureKind.CUSTOMER_FAILED: FailureRule(
        _P, True, False, "The simulated customer could not answer."
    ),
    FailureKind.DETECTOR_FAILED: FailureRule(
        _P, True, False, "The question detector could not be reached."
    ),
    FailureKind.PROVIDER_UNAVAILABLE: FailureRule(
        _P, True, False, "The model provider was not available."
    ),
    FailureKind.PROVIDER_REJECTED: FailureRule(
        _O,
        False,
        False,
        "The model provider refused the request; check the model name, endpoint and key.",
    ),
    FailureKind.EVALUATOR_CRASH: FailureRule(
        _O, True, False, "The case evaluator crashed; the grade is missing, not zero."
    ),
    FailureKind.EVALUATOR_TIMEOUT: FailureRule(
        _O,
        True,
        False,
        "The case evaluator did not finish in time; the grade is missing, not zero.",
    ),
    FailureKind.EVALUATOR_OUTPUT: FailureRule(
        _O,
        True,
        False,
        "The case evaluator printed no usable result; the grade is missing, not zero.",
    ),
    FailureKind.GRADER_SANDBOX: FailureRule(_O, True, False, "The grading sandbox did not start."),
    FailureKind.EXTRACTOR_ERROR: FailureRule(
        _O, True, False, "The extraction route ended with an error; it casts no vote."
    ),
    FailureKind.EXTRACTOR_TIMEOUT: FailureRule(
        _O, True, False, "The extraction route did not finish in time; it casts no vote."
    ),
    FailureKind.EXTRACTOR_OUTPUT: FailureRule(
        _O, True, False, "The extraction route wrote no usable _result.json; it casts no vote."
    ),
    FailureKind.EXTRACTOR_CHANGED_OUTPUT: FailureRule(
        _O,
        True,
        False,
        "The extraction route changed its output after the first score; it casts no vote.",
    ),
    FailureKind.PROVENANCE_REJECTED: FailureRule(
        _O,
        True,
        False,
        "The extracted values do not come from the agent's files; the route casts no vote.",
    ),
    FailureKind.JUDGES_MISSING: FailureRule(
        _O,
        True,
        False,
        "No coverage judge returned a ballot; clarification metrics are unavailable.",
    ),
    FailureKind.BUDGET_EXHAUSTED: FailureRule(
        _B,
        False,
        True,
        "A budget had no money left for a call: what waits for more goes on with it, what was cut "
        "short is never compared as if whole.",
    ),
    FailureKind.CANCELLED: FailureRule(_B, False, False, "The run was cancelled by its user."),
}
"""Every `FailureKind` has exactly one row; a test checks it."""

POD_LOSSES = frozenset(
    {
        FailureKind.UNSCHEDULABLE,
        FailureKind.IMAGE_PULL,
        FailureKind.NODE_REJECTED,
        FailureKind.NODE_PRESSURE,
        FailureKind.NODE_DRAINED,
        FailureKind.NODE_LOST,
        FailureKind.PREEMPTED,
        FailureKind.POD_LOST,
        FailureKind.POD_REPLACED,
        FailureKind.POD_RESTARTED,
        FailureKind.POD_DEADLINE,
    }
)
"""What a cluster does to a pod."""

START_LOSSES = frozenset(
    {
        FailureKind.SANDBOX_START,
        FailureKind.UNSCHEDULABLE,
        FailureKind.IMAGE_PULL,
        FailureKind.NODE_REJECTED,
    }
)
"""Of sandboxes that never began."""
