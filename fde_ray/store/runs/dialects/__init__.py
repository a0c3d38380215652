"""What differs between databases: a `Dialect` for each, and its `Link`, one connection at work.

`sqlite` is the embedded file with one writer; `postgresql` a server with many.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from fde_ray.store.runs.statements import Bulk, Compiler

if TYPE_CHECKING:
    from fde_ray.store.runs.transaction import Transaction

T = TypeVar("T")


class Written(NamedTuple, Generic[T]):
    """What a committed change returned, and what it wakes."""

    result: T
    topics: Sequence[Hashable]


class Link(Protocol):
    """One connection and the transactions on it; belongs to one thread.

    Raises FdeRayError alone, beside what a change itself raises.
    """

    def open(self) -> None: ...
    def close(self) -> None:
        """Disconnect; it may be opened again."""
        ...

    def leave(self) -> None:
        """Let a call that waits for a database that is away give up; from any thread, for good."""
        ...

    def write(self, change: Callable[[Transaction], T]) -> Written[T]:
        """Commit one change, or nothing of it. It may be called more than once on the way."""
        ...

    def read(self, query: Callable[[Transaction], T]) -> T:
        """Run SELECTs that need not see the same moment."""
        ...

    def snapshot(self, query: Callable[[Transaction], T]) -> T:
        """Run SELECTs that see one moment."""
        ...


class Dialect(Compiler, Protocol):
    """One database: what differs beside the text of compiled statements."""

    @property
    def place(self) -> str:
        """Where the database is, for sentences; never with a password."""
        ...

    @property
    def connections(self) -> int:
        """How many links of one process are at work at once."""
        ...

    @property
    def has_row_locks(self) -> bool:
        """Whether writers run side by side. False = they come one after the other."""
        ...

    def exists(self) -> bool:
        """Whether there is something to look at; a server always is."""
        ...

    def check(self, t: Transaction) -> None:
        """UserError says why this program could not use the database, before it changes any."""
        ...

    def prepare(self) -> None:
        """Make what must be there before the first connection."""
        ...

    def link(self) -> Link: ...
    def spelled(self, sql: str) -> str:
        """Return a statement of a migration, written in SQLite's words, for this database."""
        ...

    def table_names(self, connection: Any) -> frozenset[str]: ...
    def lock_schema(self, connection: Any) -> None:
        """Let no other process migrate until the transaction ends."""
        ...

    def time(self, connection: Any) -> float:
        """Return the time now by the clock of the database, seconds since the epoch."""
        ...

    def execute_many(self, connection: Any, sql: str, rows: Sequence[tuple[Any, ...]]) -> None: ...
    def run_all(self, connection: Any, bulk: Bulk, rows: Sequence[tuple[Any, ...]]) -> int:
        """Execute for all rows and return how many were changed. What no column can hold is
        replaced, as by `storable`."""
        ...

    def find_all(
        self, connection: Any, bulk: Bulk, rows: Sequence[tuple[Any, ...]]
    ) -> list[tuple[Any, ...]]: ...
