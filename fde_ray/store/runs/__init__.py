"""The run store: SQL rows that say where every run is; all a supervisor needs after a restart.

`store.RunStore` is the façade; `sweeps` serves people, `admission` and `supervision` the engine,
`sessions`, `dialogues` and `pauses` the plane, `calls` the ledger; `leases` is the fence between
drivers.
`dialect` holds all that is SQLite, `database` the one thread that talks to it.
"""

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
    PendingGrade,
    RunRow,
    RunTask,
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
    "GradeRow",
    "Heartbeat",
    "InboxRow",
    "Lease",
    "LeaseOwner",
    "Notifier",
    "PendingGrade",
    "RunRow",
    "RunStore",
    "RunTask",
    "SweepRow",
    "SweepRun",
    "TurnRow",
    "woken",
]
