"""What callers hand to a sandbox and get back from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, TypeAdapter

from fde_ray.model.base import Record
from fde_ray.model.failures import FailureKind
from fde_ray.model.session import SessionLimits, SessionRole

RuntimeName = Literal["bubblewrap", "gvisor", "kubernetes", "none"]
LimitsKind = Literal["cgroup1", "cgroup2", "rlimit+watchdog", "pod"]
SessionState = Literal["running", "ended", "lost"]


class SandboxFacts(Record):
    """What really runs sessions; stored with every result."""

    runtime: RuntimeName
    version: str
    limits: LimitsKind
    unsafe: bool = False
    """True when nothing isolates the agent: `--unsafe-no-sandbox`."""


class MountPoint(Record):
    """A folder of the box that the shim fills before the agent starts."""

    at: str = Field(pattern=r"^/[^\x00]*$", max_length=300)
    read_only: bool = False


@dataclass(frozen=True)
class StoredFolder:
    """A folder that the object store holds, too: an archive, or the manifest of one."""

    key: str
    below: str = ""
    """The folder inside the archive that is meant; empty = all of it."""


class SessionStart(Record):
    subject: str = Field(min_length=1, max_length=300)
    role: SessionRole
    plane_socket: str
    """Path of the plane's UNIX socket, or `http://host:port`."""
    secret: str = Field(repr=False)
    limits: SessionLimits
    """As in the session's inputs, which the shim acts on."""
    mounts: tuple[MountPoint, ...] = ()
    """All folders of the session but home and /tmp, for sandboxes that are made before the shim
    knows its inputs."""
    sweep: str | None = Field(default=None, max_length=300)
    """Of the run's plan: what people look a sandbox up by, if it can be labelled."""


class Handle(Record):
    """Names what one session runs in, for good. Rows keep it as JSON: `handle_from`."""

    subject: str


class ProcessHandle(Handle):
    """A shim on this machine: a pid alone may be used again."""

    pid: int
    start_time: int
    """Clock ticks since boot, from /proc/<pid>/stat."""
    dir: str


class PodHandle(Handle):
    """A pod: a name alone may be used again."""

    namespace: str
    name: str
    uid: str


def handle_from(value: Any) -> Handle:
    """Return the handle that a row keeps; ValueError when it is none."""
    return _HANDLE.validate_python(value)


_HANDLE: TypeAdapter[ProcessHandle | PodHandle] = TypeAdapter(ProcessHandle | PodHandle)


class Outcome(Record):
    """What a shim wrote down last. `failure` is set when the session broke for a reason of ours."""

    phase: str
    failure: FailureKind | None = None
    detail: str = ""


@dataclass(frozen=True)
class Once:
    """One program in a box without network, token or inherited descriptors."""

    argv: tuple[str, ...]
    """`boxes.ENV_PYTHON` in the first place stands for the best Python that the box has."""
    mounts: Sequence[tuple[str | Path, str, bool]] = ()
    """(host path, path inside, read-only)."""
    timeout_s: float = 60.0
    memory_bytes: int = 2 << 30
    processes: int = 256
    cpu: float = 2.0
    file_bytes: int = 256 << 20
    """Largest file it may write; also the size of /tmp and of its home folder."""
    stdout_bytes: int = 1 << 20
    stderr_bytes: int = 256 << 10
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/home/agent"
    stdin: bytes = b""
    owner: str | None = None
    """`<run>/<grade>` that it runs for; a sandbox with a box for each grade needs it."""
    untrusted: bool = False
    """The agent's own code: it runs apart from what grades it."""
    stored: Mapping[str, StoredFolder] = field(default_factory=dict)
    """Path inside -> the same content in the object store, for a sandbox on another machine."""


@dataclass(frozen=True)
class Completed:
    """exit_code: negative = killed by that signal, None = we killed it (see `reason`)."""

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    reason: Literal["exit", "timeout", "memory", "output"]
    duration_s: float = 0.0
