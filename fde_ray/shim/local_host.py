"""A session whose agent lives in a sandbox below the shim, on the same machine."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from .hosts import Launched
from .inputs import Config, Inputs, LocalSite
from .launching import LocalLaunched, assert_isolated, launch
from .limits import Cgroups, Meter, TreeMeter, group_name
from .sockets import listen_unix
from .staging import BoxStaging, Staging


class LocalHost:
    """Fits `hosts.Host`."""

    room_bytes = 256 << 20
    notes_turns = False
    end_delay_s = 0.0

    def __init__(self, config: Config, site: LocalSite) -> None:
        self._config, self._site = config, site
        self._staging: BoxStaging
        self._cgroups: Cgroups
        self._launched: LocalLaunched

    def staging(self, inputs: Inputs) -> Staging:
        self._staging = BoxStaging(self._config.dir, inputs, self._site.runtime.python)
        return self._staging

    def open(self, inputs: Inputs) -> None:
        self._cgroups = Cgroups(self._site.cgroup, group_name(os.getpid()), inputs.limits)

    def close(self) -> None:
        self._cgroups.remove()

    def relay_listener(self) -> socket.socket:
        path = os.path.join(self._staging.run, "relay.sock")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listener = listen_unix(path)
        os.chmod(path, 0o666)  # noqa: S103  (the agent may have another uid)
        return listener

    def launch(self, inputs: Inputs, over: threading.Event) -> Launched:
        self._launched = launch(self._config, self._site, inputs, self._staging, self._cgroups)
        return self._launched

    def check_isolation(self, hello: dict[str, Any], over: threading.Event) -> dict[str, Any]:
        if self._site.runtime.name == "none":
            return {}
        return assert_isolated(self._launched, hello)

    def keep_watch(self, over: threading.Event, on_loss: Callable[[str], None]) -> None:
        """A network namespace of its own with nothing in it stays as it is."""

    def meter(self) -> Meter:
        return TreeMeter(self._launched.tree_pid, self._cgroups)

    def paths(self) -> dict[str, str]:
        return self._staging.paths() if self._site.runtime.name == "none" else {}

    def oom_kills(self) -> int:
        return self._cgroups.oom_kills()
