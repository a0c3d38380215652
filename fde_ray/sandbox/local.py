"""Sandboxes on this machine: a session is a shim on the host and a box below it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fde_ray.model.errors import SandboxError, UserError
from fde_ray.model.failures import FailureKind
from fde_ray.model.profile import SandboxProfile
from fde_ray.shim.boxes import Runtime
from fde_ray.shim.inputs import CgroupSite
from fde_ray.shim.limits import group_name

from . import processes
from .cgroups import find_cgroups, sweep
from .once import run_once
from .packing import build_zipapp
from .probing import base_runtime, find_runtime
from .records import (
    Completed,
    Handle,
    Once,
    Outcome,
    ProcessHandle,
    SandboxFacts,
    SessionStart,
    SessionState,
)

STOP_PATIENCE_S = 10.0
START_TIMEOUT_S = 30
MAX_EVENTS_BYTES = 64 << 20
"""Of a shim's own notes; one that wrote more is not known to be anywhere."""
LEAST_PATIENCE_S = 10.0
"""A driver may just be starting again, whatever the pause cap is."""
_LIMITS = {0: "rlimit+watchdog", 1: "cgroup1", 2: "cgroup2"}


class LocalSandbox:
    """Starts sessions below `home`; what they leave survives this object and its process.

    unsafe: run without any isolation (`--unsafe-no-sandbox`). cgroup: where control groups can be
    made; None = look for it.
    """

    def __init__(
        self,
        home: Path,
        profile: SandboxProfile,
        *,
        unsafe: bool = False,
        cgroup: CgroupSite | None = None,
    ) -> None:
        self._home, self._profile, self._unsafe = home.resolve(), profile, unsafe
        self._cgroup = cgroup
        self._ready: tuple[Runtime, CgroupSite, Path, SandboxFacts] | None = None
        # One probe for all callers of a process.
        self._probing = asyncio.Lock()

    async def probe(self) -> SandboxFacts:
        """Return what works here; raise UserError with the install command when nothing does."""
        return (await self._prepared())[3]

    async def start(self, session: SessionStart) -> Handle:
        """Start a session, or return the one that lives already under this subject."""
        runtime, cgroup, pyz, _ = await self._prepared()
        return await asyncio.to_thread(self._start, session, runtime, cgroup, pyz)

    async def state(self, handle: Handle) -> SessionState:
        """Tell running, ended (it finished its work or was stopped) or lost (see `outcome`)."""
        return await asyncio.to_thread(_state, _ours(handle))

    async def over(self, handles: Sequence[Handle]) -> frozenset[str]:
        """Return the subjects of those sessions that run no more, in one look for all."""
        return await asyncio.to_thread(_over, handles)

    async def outcome(self, handle: Handle) -> Outcome:
        """Return what the shim wrote down last."""
        return await asyncio.to_thread(_outcome, _ours(handle))

    async def stop(self, handle: Handle) -> None:
        """End a session at once, without collecting; quiet when it is over."""
        handle = _ours(handle)
        processes.send(handle.pid, handle.start_time, signal.SIGTERM)
        for _ in range(int(STOP_PATIENCE_S / 0.05)):
            if not processes.is_alive(handle.pid, handle.start_time):
                return
            await asyncio.sleep(0.05)
        # The sandbox dies with its parent.
        processes.send(handle.pid, handle.start_time, signal.SIGKILL)
        while processes.is_alive(handle.pid, handle.start_time):  # noqa: ASYNC110  (no event to wait for)
            await asyncio.sleep(0.05)

    async def remove(self, handle: Handle) -> None:
        """Delete what a session left on this machine; refuses while it runs."""
        handle = _ours(handle)
        if await self.state(handle) == "running":
            raise SandboxError("the session still runs", FailureKind.SANDBOX_START)
        await asyncio.to_thread(self._clear, handle)

    async def run_once(self, once: Once) -> Completed:
        """Run one program without network, token or inherited descriptors; kill all it started."""
        runtime, cgroup, _, _ = await self._prepared()
        return await run_once(runtime, cgroup, once)

    def handle_of(self, subject: str) -> ProcessHandle | None:
        """Return the handle of a session that was started before; None when there is none."""
        folder = self._folder(subject)
        state = _read_state(folder)
        if not isinstance(state.get("pid"), int) or not isinstance(state.get("start_time"), int):
            return None
        return ProcessHandle(
            subject=subject, pid=state["pid"], start_time=state["start_time"], dir=str(folder)
        )

    async def sessions(self) -> list[Handle]:
        """Return a handle for each session that was started here and not removed."""
        return await asyncio.to_thread(self._sessions)

    async def turns(self, handle: Handle) -> int | None:
        """Return how many turns have had their replies; None = one is open, or nobody is at work.

        It is the shim's word, which runs beside the agent and not below it.
        """
        return await asyncio.to_thread(_turns, Path(_ours(handle).dir))

    def _sessions(self) -> list[Handle]:
        found = (self.handle_of(s) for s in _subjects(self._home / "sessions"))
        return [handle for handle in found if handle is not None]

    async def _prepared(self) -> tuple[Runtime, CgroupSite, Path, SandboxFacts]:
        async with self._probing:
            if self._ready is None:
                self._ready = await asyncio.to_thread(self._prepare)
            return self._ready

    def _prepare(self) -> tuple[Runtime, CgroupSite, Path, SandboxFacts]:
        self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
        base = base_runtime(self._home, self._agent_env())
        runtime, version = find_runtime(self._profile.runtime, base, unsafe=self._unsafe)
        cgroup = self._cgroup or find_cgroups()
        sweep(cgroup, time.time())
        if runtime.name == "gvisor":
            # Its own kernel is a process of some hundred threads in the same group.
            cgroup = replace(cgroup, extra_processes=512, extra_bytes=256 << 20)
        facts = SandboxFacts.model_validate(
            {
                "runtime": runtime.name,
                "version": version,
                "limits": _LIMITS[cgroup.version],
                "unsafe": runtime.name == "none",
            }
        )
        return runtime, cgroup, build_zipapp(self._home), facts

    def _agent_env(self) -> Path | None:
        if self._profile.agent_env is not None:
            path = Path(self._profile.agent_env).expanduser().resolve()
            if not (path / "bin" / "python").exists():
                raise UserError(f"sandbox.agent_env: {path} is no Python environment")
            return path
        made = Path(__file__).resolve().parents[2] / ".agent-env"
        return made if (made / "bin" / "python").exists() else None

    def _clear(self, handle: ProcessHandle) -> None:
        # A shim that was killed leaves its control groups behind.
        if self._ready is not None:
            for parent in self._ready[1].parents.values():
                with contextlib.suppress(OSError):
                    os.rmdir(f"{parent}/{group_name(handle.pid)}")
        _remove_tree(Path(handle.dir))

    def _folder(self, subject: str) -> Path:
        """Return a folder name that no two subjects share."""
        plain = re.sub(r"[^A-Za-z0-9.-]", "_", subject)[:40]
        return (
            self._home / "sessions" / f"{plain}-{hashlib.sha256(subject.encode()).hexdigest()[:12]}"
        )

    def _start(
        self, session: SessionStart, runtime: Runtime, cgroup: CgroupSite, pyz: Path
    ) -> ProcessHandle:
        folder = self._folder(session.subject)
        known = self.handle_of(session.subject)
        if known is not None:
            return known
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        config = folder / "config.json"
        text = json.dumps(_config(session, runtime, cgroup, pyz, folder))
        with open(config, "w", encoding="utf-8", opener=_private) as file:
            file.write(text)
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", pyz, "shim", "--config", config, "--detach"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_TIMEOUT_S,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
            cwd="/",
            check=False,
        )
        try:
            born = json.loads(done.stdout)
            return ProcessHandle(
                subject=session.subject,
                pid=born["pid"],
                start_time=born["start_time"],
                dir=str(folder),
            )
        except (ValueError, KeyError) as error:
            raise SandboxError(done.stderr.decode("utf-8", "replace")) from error


def _config(
    session: SessionStart, runtime: Runtime, cgroup: CgroupSite, pyz: Path, folder: Path
) -> dict[str, Any]:
    plane = session.plane_socket
    return {
        "format": 1,
        "subject": session.subject,
        "role": session.role,
        "plane": plane if plane.startswith(("unix:", "http://")) else f"unix:{plane}",
        "secret": session.secret,
        "dir": str(folder),
        "pyz": str(pyz),
        "runtime": runtime.jsonable(),
        "cgroup": asdict(cgroup),
        "give_up_s": max(session.limits.pause_cap_s, LEAST_PATIENCE_S),
    }


def _turns(folder: Path) -> int | None:
    begun = done = 0
    try:
        if _read_state(folder).get("phase") != "solving":
            return None
        with open(folder / "events.jsonl", "rb") as file:
            data = file.read(MAX_EVENTS_BYTES + 1)
        if len(data) > MAX_EVENTS_BYTES:
            return None
        for line in data.splitlines():
            event = json.loads(line)
            if event.get("event") == "letter":
                if event.get("kind") != "turn":
                    return None
                begun += 1
            done += event.get("event") == "turn_done"
    except (OSError, ValueError, AttributeError):
        return None
    return done if begun == done else None


def _subjects(home: Path) -> list[str]:
    """Return the subjects of the folders of sessions, as far as they can be read."""
    found = []
    for config in sorted(home.glob("*/config.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found.append(str(json.loads(config.read_bytes())["subject"]))
    return found


def _read_state(folder: Path) -> dict[str, Any]:
    try:
        value = json.loads((folder / "state.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _ours(handle: Handle) -> ProcessHandle:
    if not isinstance(handle, ProcessHandle):
        raise SandboxError(
            f"{handle.subject} runs in a pod: set sandbox.runtime to kubernetes to go on with it"
        )
    return handle


def _state(handle: ProcessHandle) -> SessionState:
    if processes.is_alive(handle.pid, handle.start_time):
        return "running"
    # Read after the check: a shim writes its last phase before it leaves.
    phase = _read_state(Path(handle.dir)).get("phase")
    return "ended" if phase in ("ended", "stopped") else "lost"


def _over(handles: Sequence[Handle]) -> frozenset[str]:
    return frozenset(
        one.subject
        for one in handles
        if isinstance(one, ProcessHandle) and not processes.is_alive(one.pid, one.start_time)
    )


def _outcome(handle: ProcessHandle) -> Outcome:
    state = _read_state(Path(handle.dir))
    failure = state.get("failure")
    return Outcome(
        phase=str(state.get("phase", "unknown")),
        failure=FailureKind(failure) if failure in set(FailureKind) else None,
        detail=str(state.get("detail", "")),
    )


def _remove_tree(folder: Path) -> None:
    def mend(function: Any, path: str, _: object) -> None:
        os.chmod(os.path.dirname(path), 0o700)
        if os.path.isdir(path) and not os.path.islink(path):
            os.chmod(path, 0o700)
            shutil.rmtree(path)
        else:
            function(path)

    if folder.exists():
        shutil.rmtree(folder, onerror=mend)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
