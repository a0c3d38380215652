"""A sandbox session: a solving attempt, an extraction try or a box for programs of a grade.

The engine writes `SessionInputs`; the plane serves them verbatim to the shim that proves itself.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Record
from .states import Channel

SNAPSHOT_FINAL = "final"

SessionRole = Literal["solve", "extract", "score", "exec"]
"""`score` and `exec` are boxes: for programs of ours, and for an agent's own."""
SESSION_ROLES: tuple[SessionRole, ...] = ("solve", "extract", "score", "exec")


class Mount(Record):
    """An archive (tar+gzip) unpacked at `at`. `keep_data_clean`: see `read_only`."""

    archive: str
    """Name under /v1/archives/: `visible`, `extract`, `workspace`."""
    at: str
    """Absolute path inside the sandbox."""
    read_only: bool = False


class InputFile(Record):
    """A text file that we write into the sandbox before the start."""

    at: str
    text: str
    read_only: bool = True


class SessionLimits(Record):
    time_s: float
    cpu: float
    memory_bytes: int
    disk_bytes: int
    processes: int
    archive_bytes: int
    pause_cap_s: float


class SessionInputs(Record):
    format: Literal[1] = 1
    subject: str
    role: SessionRole
    scaffold: str
    settings: dict[str, str | int | float | bool] = {}
    model: str
    prompt: str
    channel: Channel
    has_questions: bool
    max_steps: int | None = None
    workdir: str = "/workspace"
    collect: str = "/workspace"
    """The folder whose tree is collected."""
    exclude: tuple[str, ...] = ()
    """Top-level names under `collect` that are not collected (`data`, `instruction.md`)."""
    mounts: tuple[Mount, ...] = ()
    files: tuple[InputFile, ...] = ()
    archives: dict[str, str] = {}
    """Archive name -> object key; the plane serves no other key."""
    limits: SessionLimits
    heartbeat_s: float = 5.0
    snapshot_s: float = 1800.0
    evaluate: bool = False
    """Whether /v1/evaluate is open to this session (grade-plane only)."""


class Part(Record):
    seq: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=0)


class Commit(Record):
    """The manifest of one snapshot: concatenated parts are one tar+gzip stream."""

    snapshot: str = Field(pattern=r"^[a-z0-9-]{1,40}$")
    parts: tuple[Part, ...]
    tree_hash: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 over sorted `path NUL sha256-of-content NEWLINE` lines of the regular files."""
    files: int = Field(ge=0)
    size_bytes: int = Field(ge=0)
    skipped: tuple[str, ...] = ()
    """Links, devices and unreadable files that were left out, with the reason (at most 100)."""
    final: bool
    """True only after the sandbox is known to be dead."""


class AgentExit(Record):
    """How the agent's side ended when no reply of ours ended it; the agent's word, as a claim."""

    kind: Literal["agent_error", "agent_resource", "step_limit", "refused", "time_limit"]
    detail: str = ""
    exit_code: int | None = None
