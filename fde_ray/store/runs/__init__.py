"""The run store: SQL rows that say where every run is; all a supervisor needs after a restart.

`store.RunStore` is the façade; `sweeps` serves people, `admission` and `supervision` the engine,
`sessions`, `dialogues` and `pauses` the plane, `calls` the ledger; `leases` is the fence between
drivers, `keeper` the threads that keep it.
`dialects` hold what differs between SQLite and PostgreSQL, `database` the threads at work on them.
"""

from .accounts import Gradable
from .keeper import LeaseKeeper, LeaseTimes
from .location import StoreLocation
from .notifier import Notifier, woken
from .rows import (
    AttemptRole,
    AttemptRow,
    CallRow,
    Epoch,
    Gap,
    GradeRow,
    Heartbeat,
    InboxRow,
    Lease,
    LeaseOwner,
    OpenTurn,
    RunRow,
    RunTask,
    Standing,
    SweepRow,
    SweepRun,
    TurnRow,
)
from .store import RunStore

__all__ = [
    "AttemptRole",
    "AttemptRow",
    "CallRow",
    "Epoch",
    "Gap",
    "Gradable",
    "GradeRow",
    "Heartbeat",
    "InboxRow",
    "Lease",
    "LeaseKeeper",
    "LeaseOwner",
    "LeaseTimes",
    "Notifier",
    "OpenTurn",
    "RunRow",
    "RunStore",
    "RunTask",
    "Standing",
    "StoreLocation",
    "SweepRow",
    "SweepRun",
    "TurnRow",
    "woken",
]
