"""Programs that run for a grade in a box elsewhere: what the box is told, and what it tells.

A job names its folders by objects, so that the box need not share a disk with whoever asks.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from .base import Record

BoxRole = Literal["score", "exec"]
"""score: what grades. exec: the agent's own programs, which no sealed word may meet."""
BOX_ROLES: tuple[BoxRole, ...] = ("score", "exec")
BOX_ROOT = "/grader"
"""All folders of a job lie below it: the one volume of a box, read-only to programs."""
MAX_KEPT_BYTES = 2 << 20
"""The most that a job may keep of a program's output, and the most that it may be fed."""
MAX_FOLDERS = 32
MAX_DETAIL = 500
MAX_RESULT_BYTES = 6 << 20
"""Of a result as JSON."""


def _decoded(value: Any) -> Any:
    return base64.b64decode(value, validate=True) if isinstance(value, str) else value


def _encoded(value: bytes) -> str:
    return base64.b64encode(value).decode()


Raw = Annotated[
    bytes,
    Field(max_length=MAX_KEPT_BYTES),
    BeforeValidator(_decoded),
    PlainSerializer(_encoded, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "byte"}),
]
"""Bytes; as JSON in Base64."""
Word = Annotated[str, Field(max_length=100_000)]
InsidePath = Annotated[str, Field(pattern=r"^/[^\x00]*$", max_length=1000)]


class BoxFolder(Record):
    at: InsidePath
    key: str = Field(min_length=1, max_length=1000)
    """Of an archive (tar+gzip), or of the manifest of one."""
    below: str = Field(default="", max_length=1000)
    """Only this folder of the archive is meant."""


class BoxJob(Record):
    """One program, as `sandbox.records.Once` describes it."""

    format: Literal[1] = 1
    argv: tuple[Word, ...] = Field(min_length=1, max_length=1000)
    env: dict[str, Word] = {}
    workdir: InsidePath
    folders: tuple[BoxFolder, ...] = Field(default=(), max_length=MAX_FOLDERS)
    timeout_s: float = Field(gt=0)
    memory_bytes: int = Field(gt=0)
    file_bytes: int = Field(gt=0)
    stdout_bytes: int = Field(ge=0, le=MAX_KEPT_BYTES)
    stderr_bytes: int = Field(ge=0, le=MAX_KEPT_BYTES)
    stdin: Raw = b""


class BoxResult(Record):
    """How a job ended. `lost`: it did not run, or nobody knows how; `detail` says why."""

    reason: Literal["exit", "timeout", "memory", "output", "lost"]
    exit_code: int | None = Field(default=None, ge=-255, le=255)
    """None unless the reason is `exit`."""
    stdout: Raw = b""
    stderr: Raw = b""
    duration_s: float = Field(default=0.0, ge=0)
    detail: str = Field(default="", max_length=MAX_DETAIL)


def box_owner(run_id: str, grade_id: str) -> str:
    """Return the name under which a grade's programs run."""
    return f"{run_id}/{grade_id}"


def box_line(owner: str, role: BoxRole) -> str:
    """Return the name of a grade's boxes of one role, which follow each other."""
    return f"{owner}/{role}"


def box_subject(line: str, number: int) -> str:
    """Return the session of a box; a lost one is followed by the next number."""
    return f"{line}.{number}"


def line_of(subject: str) -> str:
    """Return the line whose programs the box of this session runs."""
    return subject.rpartition(".")[0]


def owner_of(subject: str) -> str:
    """Return the grade that a line, a box or an extraction try belongs to."""
    return subject.rpartition("/")[0]
