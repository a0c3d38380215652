"""The façade: one object with a method per transaction, grouped by who calls it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from fde_ray.model.clock import Clock, SystemClock

from .accounts import Accounts
from .admission import Admission
from .asking import Asking
from .boxes import Boxes
from .budgets import Budgets
from .calls import LOOK_WINDOW_S, Calls
from .database import Database
from .dialects import Dialect
from .dialects.sqlite import PATIENCE_S, SqliteDialect
from .dialogues import Dialogues
from .endings import Endings
from .generations import Generations
from .grades import Grades
from .grouping import GroupCommit
from .hearing import Heard
from .inbox import Inbox
from .leases import Leases, process_start
from .ledger import LedgerWriter
from .location import StoreLocation
from .migrations import migrate
from .notifier import Notifier
from .pauses import Pauses
from .people import People
from .rates import Rates
from .rebuilding import Rebuilding
from .reconciling import Reconciling
from .removal import Removal
from .scheduling import Scheduling
from .sessions import Sessions
from .spending import SpendingReads
from .supervision import Supervision
from .sweeps import Sweeps
from .versions import Versions
from .vitals import VitalSigns


class RunStore(
    Sweeps,
    Versions,
    Admission,
    Scheduling,
    Supervision,
    Leases,
    Asking,
    Generations,
    Reconciling,
    Rebuilding,
    Grades,
    Sessions,
    Endings,
    Dialogues,
    Pauses,
    Heard,
    Calls,
    Budgets,
    Rates,
    Inbox,
    Accounts,
    SpendingReads,
    VitalSigns,
    People,
    Removal,
    Boxes,
):
    """`async with RunStore(path, clock) as store:` opens, migrates and closes.

    `RunStore.at(location, clock)` is the one on a database server, too. Every method is one
    transaction on a thread of the store. StoreError: the store cannot be reached now; UserError: a
    person must mend it; Superseded: another owner came first.
    """

    def __init__(
        self,
        place: Path | Dialect,
        clock: Clock | None = None,
        *,
        busy_timeout_s: float = PATIENCE_S,
    ) -> None:
        self._db = Database(
            SqliteDialect(place, busy_timeout_s) if isinstance(place, Path) else place
        )
        self._clock = clock or SystemClock()
        self._host = socket.gethostname()
        self._started = process_start
        self._boots = set()
        started = process_start(os.getpid()) or ""
        self._ledger = LedgerWriter(self._db, self._clock, self._host, started)
        self.boot = self._ledger.boot
        self._looks = GroupCommit(self._db.read, self._known, LOOK_WINDOW_S)
        self._signs = GroupCommit(self._db.read, self._vitals_of, LOOK_WINDOW_S)

    @classmethod
    def at(
        cls,
        location: StoreLocation,
        clock: Clock | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """environ: where a password may be; None = this process."""
        return cls(location.dialect(environ), clock)

    @property
    def changed(self) -> Notifier:
        """Topics: ("inbox",), ("turn", subject), ("dialogue", subject), ("session", subject),
        ("call", call_id), ("run", run_id), ("runs",), ("sweeps",), ("granted",),
        ("holds",), ("jobs", owner), ("job", job_id)."""
        return self._db.changed

    async def open(self) -> Self:
        self._db.dialect.prepare()
        await self._db.open()
        await self._db.read(self._db.dialect.check)
        await migrate(self._db, self._clock.now())
        return self

    async def close(self) -> None:
        await self._ledger.close()
        await self._db.close()

    async def __aenter__(self) -> Self:
        try:
            return await self.open()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
