"""The lives of drivers on one home: each begins where the one before it was killed."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

from fde_ray.engine.controller import SweepStatus
from fde_ray.engine.runtime import Runtime
from fde_ray.llm.client import Chat
from fde_ray.model.errors import StoreError
from tests.engine.drivers import opened, worked

from .effects import Effect, Fenced, Position, fence
from .faults import OUTAGE_S, Cell, Director, Kind, error_of
from .world import World, WorldStage

MOST_LIVES = 400
PROFILE = {"attempts": 20, "provider_retries": 20}
"""Far more tries than one walk has faults: none of them may change a result."""


class Life:
    """One driver process: its effects, and the end of all of them when it is killed."""

    def __init__(self, director: Director) -> None:
        self._director = director
        self._rows: sqlite3.Connection | None = None
        self._tasks: set[asyncio.Future[Any]] = set()
        self._out: dict[str, float] = {}
        self._is_doomed = False
        self.is_dead = False
        self.effects: list[Effect] = []
        self.status: SweepStatus | None = None
        self.gave_up: StoreError | None = None
        self.lasted_s = 0.0

    @contextmanager
    def led(self, runtime: Runtime) -> Iterator[None]:
        """The runtime's effects pass through this life inside the block."""
        fence(self, "store", runtime.store)
        fence(self, "objects", runtime.objects)
        with closing(sqlite3.connect(f"file:{runtime.home.database}?mode=ro", uri=True)) as rows:
            self._rows, began = rows, asyncio.get_running_loop().time()
            yield
            self.lasted_s = asyncio.get_running_loop().time() - began

    @contextmanager
    def passing(self, interface: str, method: str) -> Iterator[None]:
        cell = self._entered(interface, method)
        try:
            yield
        except Exception:
            self._left(cell)
            raise
        self._left(cell)

    async def host(self, request: Coroutine[Any, Any, Any]) -> Any:
        """Serve a request of the world outside; its connection breaks when the driver dies."""
        if self.is_dead:
            request.close()
            raise StoreError("connection refused")
        task = asyncio.ensure_future(request)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await task
        except asyncio.CancelledError:
            if task.cancelled() and self.is_dead:
                raise StoreError("connection lost") from None
            raise

    async def carry(self, work: Awaitable[SweepStatus]) -> SweepStatus | None:
        """Do the driver's work; None = it was killed at it."""
        main = asyncio.ensure_future(work)
        self._tasks.add(main)
        try:
            return await main
        except asyncio.CancelledError:
            if not self.is_dead:
                raise
        finally:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        return None

    def _entered(self, interface: str, method: str) -> Cell | None:
        if self._is_doomed:
            self._die()
        self._live()
        effect = Effect(self._stage(), interface, method)
        self.effects.append(effect)
        if self._out.get(interface, 0.0) > asyncio.get_running_loop().time():
            raise error_of(interface, Position.BEFORE)
        cell = self._director.chosen(effect)
        if cell is not None and cell.position is Position.BEFORE:
            self._strike(cell)
        return cell

    def _left(self, cell: Cell | None) -> None:
        self._live()
        if cell is None:
            return
        if cell.position is Position.REPLY_LOST:
            self._strike(cell)
        self._director.struck.append(cell)
        if cell.kind is Kind.KILL:
            self._is_doomed = True
        else:
            self._out[cell.effect.interface] = asyncio.get_running_loop().time() + OUTAGE_S

    def _strike(self, cell: Cell) -> None:
        self._director.struck.append(cell)
        if cell.kind is Kind.KILL:
            self._die()
        raise error_of(cell.effect.interface, cell.position)

    def _die(self) -> None:
        self.is_dead = True
        for task in self._tasks:
            task.cancel()
        self._live()

    def _live(self) -> None:
        if self.is_dead:
            raise asyncio.CancelledError("the driver is dead")

    def _stage(self) -> str:
        if self._rows is None:
            return "opening"
        return str(self._rows.execute("SELECT phase FROM runs").fetchone()[0])


async def lived(home: Path, world: World, director: Director, sweep: str) -> Life:
    """Drive the sweep until it is settled, or the driver is killed or gives up."""
    life = Life(director)
    stage = cast("WorldStage", Fenced(life, "sandbox", world.stage))
    chat = cast("Chat", Fenced(life, "chat", world.provider))
    async with opened(home, stage, chat=chat, **PROFILE) as runtime:
        # Lives are processes of one host, and all earlier ones are dead.
        runtime.store._started = lambda pid: None
        with life.led(runtime):
            world.stage.host = life.host
            try:
                life.status = await life.carry(_worked(runtime, sweep))
            except StoreError as error:
                life.gave_up = error
    return life


async def _worked(runtime: Runtime, sweep: str) -> SweepStatus:
    (status,) = await worked(runtime, [sweep])
    return status
