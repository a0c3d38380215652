"""What the shim is told: its private config file, and the session's inputs from the plane."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, field
from typing import Any

from .boxes import Runtime


class BadInput(Exception):
    """A config or a session input is not usable."""


@dataclass(frozen=True)
class CgroupSite:
    """Where to make the session's control groups: controller -> parent folder. version 0: none."""

    version: int = 0
    parents: dict[str, str] = field(default_factory=dict)
    extra_processes: int = 0
    extra_bytes: int = 0
    """What the runtime itself takes, on top of the session's limits."""


@dataclass(frozen=True)
class Config:
    subject: str
    role: str
    plane: str
    secret: str = field(repr=False)
    dir: str
    give_up_s: float = 24 * 3600.0
    """How long an unreachable plane is waited for, outside of solving: at most the pause cap."""


@dataclass(frozen=True)
class LocalSite:
    """What this machine offers for a sandbox below the shim."""

    pyz: str
    runtime: Runtime
    cgroup: CgroupSite = CgroupSite()


@dataclass(frozen=True)
class Limits:
    time_s: float
    cpu: float
    memory_bytes: int
    disk_bytes: int
    processes: int
    archive_bytes: int
    pause_cap_s: float


@dataclass(frozen=True)
class Mount:
    archive: str
    at: str
    read_only: bool = False


@dataclass(frozen=True)
class InputFile:
    at: str
    text: str
    read_only: bool = True


@dataclass(frozen=True)
class Inputs:
    """The part of SessionInputs that a shim acts on."""

    subject: str
    role: str
    scaffold: str
    model: str
    prompt: str
    channel: str
    has_questions: bool
    limits: Limits
    settings: dict[str, Any]
    max_steps: int | None
    workdir: str
    collect: str
    exclude: tuple[str, ...]
    mounts: tuple[Mount, ...]
    files: tuple[InputFile, ...]
    heartbeat_s: float
    snapshot_s: float
    evaluate: bool


def read_config(path: str) -> tuple[Config, LocalSite]:
    """Read the private config. Others must not be able to read it."""
    with open(path, encoding="utf-8") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise BadInput(f"{path} is readable by others; its mode must be 0600")
        value = json.load(file)
    try:
        of_site = ("format", "pyz", "runtime", "cgroup")
        return Config(**{k: v for k, v in value.items() if k not in of_site}), LocalSite(
            value["pyz"], Runtime.of(value["runtime"]), CgroupSite(**value.get("cgroup", {}))
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path}: {error}") from error


def read_inputs(value: dict[str, Any]) -> Inputs:
    """Turn the plane's JSON into records; keys that this version does not know are passed over."""
    try:
        return Inputs(
            subject=str(value["subject"]),
            role=str(value["role"]),
            scaffold=str(value["scaffold"]),
            model=str(value["model"]),
            prompt=str(value["prompt"]),
            channel=str(value.get("channel", "text")),
            has_questions=bool(value.get("has_questions", False)),
            limits=Limits(**value["limits"]),
            settings=dict(value.get("settings") or {}),
            max_steps=value.get("max_steps"),
            workdir=_inside_path(value.get("workdir", "/workspace")),
            collect=_inside_path(value.get("collect", "/workspace")),
            exclude=tuple(value.get("exclude") or ()),
            mounts=tuple(
                Mount(str(m["archive"]), _inside_path(m["at"]), bool(m.get("read_only")))
                for m in value.get("mounts") or ()
            ),
            files=tuple(
                InputFile(_inside_path(f["at"]), str(f["text"]), bool(f.get("read_only", True)))
                for f in value.get("files") or ()
            ),
            heartbeat_s=float(value.get("heartbeat_s", 5.0)),
            snapshot_s=float(value.get("snapshot_s", 1800.0)),
            evaluate=bool(value.get("evaluate", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"session inputs: {type(error).__name__}: {error}") from error


_TAKEN = ("/usr", "/proc", "/dev", "/etc", "/bin", "/lib", "/lib64", "/sbin", "/run", "/opt/fde")


def _inside_path(value: Any) -> str:
    path = str(value)
    if not path.startswith("/") or os.path.normpath(path) != path or path == "/":
        raise ValueError(f"{path!r} is not a clean absolute path")
    if any(path == taken or path.startswith(taken + "/") for taken in _TAKEN):
        raise ValueError(f"{path!r} belongs to the sandbox itself")
    return path
