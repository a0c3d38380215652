"""Where a session's agent lives, as its shim sees it: the seam between one machine and a pod.

`local_host` starts a sandbox below the shim; `pod_host` has the agent's container beside it, whose
end it can only ask for and must then prove. The session itself (`session`) is the same for both.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from .inputs import Inputs
from .limits import Meter
from .staging import Staging


class NotStarted(Exception):
    """The agent's side did not come up, or not fenced; the text says what is known."""


class NotIsolated(Exception):
    """The agent's side can reach what it must not reach."""


class End(NamedTuple):
    """How the agent's side ended. is_proven: nothing of it can still write."""

    exit_code: int | None
    """None = the shim cannot see it."""
    is_proven: bool = True
    seconds: float = 0.0
    """From the order to end to the proof, or to giving up."""


class Launched(Protocol):
    """The agent's side at work, and the shim's end of its control connection."""

    def facts(self) -> dict[str, Any]:
        """Return what the journal's state keeps of it."""
        ...

    def tell(self, message: dict[str, Any]) -> None: ...

    def hear(self) -> dict[str, Any] | None: ...

    def strike(self) -> None:
        """Order the end without waiting for it; callable from any thread, again and again."""
        ...

    def kill(self, hurry: threading.Event) -> End:
        """End everything and wait until that is sure. hurry: nobody needs to be sure any more."""
        ...


class Host(Protocol):
    """One session's place. Its methods are called in this order, `close` any time after `open`."""

    room_bytes: int
    """Of memory for what the agent sends."""
    notes_turns: bool
    """Whether each turn is noted in the bucket before it is posted: nobody reads the journal."""
    end_delay_s: float
    """How long an agent's side that ended by itself may still turn out to end with its shim."""

    def staging(self, inputs: Inputs) -> Staging: ...

    def open(self, inputs: Inputs) -> None:
        """Make what the session needs around it; `close` undoes it."""
        ...

    def close(self) -> None: ...

    def relay_listener(self) -> socket.socket: ...

    def launch(self, inputs: Inputs, over: threading.Event) -> Launched:
        """Return once the runner has connected; the main thread must call it.

        Raises NotStarted, OSError.
        """
        ...

    def check_isolation(self, hello: dict[str, Any], over: threading.Event) -> dict[str, Any]:
        """Return what was checked before any agent code runs; {} where nothing isolates.

        `gate` in it goes to the plane. hello: the runner's first word. Raises NotIsolated,
        NotStarted.
        """
        ...

    def keep_watch(self, over: threading.Event, on_loss: Callable[[str], None]) -> None:
        """Check again from time to time until `over`; call `on_loss` when isolation is gone."""
        ...

    def meter(self) -> Meter: ...

    def paths(self) -> dict[str, str]:
        """Return inside path -> real path, where the two differ for the agent."""
        ...

    def oom_kills(self) -> int:
        """Return how often the kernel killed for memory, as far as the shim can see it."""
        ...
