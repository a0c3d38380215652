"""Operations that people and their tools ask of the control-plane, and machines of any process."""

from __future__ import annotations

from typing import Any, Literal, get_type_hints

from pydantic import create_model

from fde_ray.metering.metrics import CONTENT_TYPE
from fde_ray.model.base import Record
from fde_ray.model.result import CostLine, RunResult
from fde_ray.model.specs import SweepSpec
from fde_ray.model.states import SolveEnd
from fde_ray.store.runs.people import UserRole
from fde_ray.store.runs.rows import AttemptState, RunRow, SweepRun, SweepState

from .operations import JSON, Json, Operation, Reply, in_path, in_query, says

_NAME = in_path("name", {"type": "string", "minLength": 1}, "Of a sweep.")


class Submitted(Record):
    name: str
    new: bool
    """False: the same sweep was there before."""


class Sweep(Record):
    name: str
    state: SweepState
    finished: bool
    created_at: float


class OwnedSweep(Sweep):
    owner: str
    """Empty: the operator."""


class Sweeps(Record):
    sweeps: tuple[OwnedSweep, ...]


class Changed(Record):
    name: str
    state: Literal["running", "paused", "cancelled", "deleted"]


class Attempt(Record):
    attempt: int
    state: AttemptState
    solve_end: SolveEnd | None
    failure: str | None
    detail: str | None


class Results(Record):
    results: tuple[RunResult, ...]


class Me(Record):
    name: str
    role: UserRole


def _record_of(row: type[Any], **more: Any) -> type[Record]:
    """Return a record with the fields of a row of the store, as the desk writes them."""
    fields: Any = {name: (hint, ...) for name, hint in get_type_hints(row).items()} | more
    made: type[Record] = create_model(row.__name__, __base__=Record, **fields)
    return made


RunOfSweep = _record_of(SweepRun)
Run = _record_of(RunRow, attempts=(tuple[Attempt, ...], ...))
WholeSweep = create_model(
    "WholeSweep",
    __base__=Sweep,
    notices=(tuple[str, ...], ...),
    spec=(dict[str, Any], ...),
    runs=(tuple[RunOfSweep, ...], ...),  # type: ignore[valid-type]
    cost=(tuple[CostLine, ...], ...),
)

CONTROL_OPERATIONS = (
    Operation(
        "POST",
        "/v1/sweeps",
        "submit",
        "Submit a sweep, as YAML or JSON.",
        {
            200: Reply("The same sweep was there before.", {JSON: Submitted}),
            201: Reply("It is new.", {JSON: Submitted}),
        },
        {"application/yaml": SweepSpec, JSON: SweepSpec},
    ),
    Operation("GET", "/v1/sweeps", "sweeps", "List the sweeps.", says(Sweeps)),
    Operation(
        "GET",
        "/v1/sweeps/{name}",
        "sweep",
        "Read a sweep with its runs.",
        says(WholeSweep),
        parameters=(_NAME,),
    ),
    Operation(
        "DELETE",
        "/v1/sweeps/{name}",
        "remove",
        "Forget a sweep that is cancelled and over.",
        says(Changed),
        parameters=(_NAME,),
    ),
    Operation(
        "POST",
        "/v1/sweeps/{name}/{action}",
        "change",
        "Pause, resume or cancel a sweep.",
        says(Changed),
        parameters=(_NAME, in_path("action", {"enum": ["pause", "resume", "cancel"]})),
    ),
    Operation(
        "GET",
        "/v1/runs/{run}",
        "run",
        "Read a run with its attempts.",
        says(Run),
        parameters=(in_path("run", {"type": "string", "minLength": 1}),),
    ),
    Operation(
        "GET",
        "/v1/results",
        "results",
        "Read every result of a sweep.",
        says(Results),
        parameters=(in_query("sweep", {"type": "string", "minLength": 1}, required=True),),
    ),
    Operation("GET", "/v1/me", "me", "Read who asks.", says(Me)),
    Operation("GET", "/openapi.json", "openapi", "Read this document.", says({"type": "object"})),
)

_STATE: Json = {"type": "object"}
ADMIN_OPERATIONS = (
    Operation(
        "GET", "/livez", "livez", "Ask whether the process lives.", says(_STATE), security="none"
    ),
    Operation(
        "GET",
        "/readyz",
        "readyz",
        "Ask whether new work may come here.",
        {
            200: Reply("It may.", {JSON: _STATE}),
            503: Reply("It may not; the reason is there.", {JSON: _STATE}),
        },
        security="none",
    ),
    Operation(
        "GET",
        "/metrics",
        "metrics",
        "Read the counters of the process.",
        {200: Reply("For Prometheus.", {CONTENT_TYPE.partition(";")[0]: {"type": "string"}})},
        security="none",
    ),
)
