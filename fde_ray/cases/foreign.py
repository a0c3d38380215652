"""Reads the files of a package as foreign input: every fault is a one-line CaseError."""

import json
import os
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from fde_ray.model.base import Record
from fde_ray.model.errors import CaseError

MAX_TEXT_BYTES = 2 << 20
MAX_DATA_BYTES = 8 << 20
MAX_FILES = 5000
MAX_NAME_CHARS = 240
_IGNORED_FOLDERS = {"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
R = TypeVar("R", bound=Record)


def tree_files(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the regular files below `root`, sorted by relative name.

    Links, hard links, devices, pipes, sockets and odd names are a CaseError.
    """
    found: list[tuple[str, os.stat_result]] = []
    pending = [root]
    while pending:
        folder = pending.pop()
        for entry in _listing(folder):
            relative = os.path.relpath(entry.path, root).replace(os.sep, "/")
            facts = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(facts.st_mode):
                if entry.name not in _IGNORED_FOLDERS:
                    pending.append(Path(entry.path))
                continue
            _refuse_odd(root, relative, facts)
            found.append((relative, facts))
            if len(found) > MAX_FILES:
                raise CaseError(root, f"more than {MAX_FILES} files")
    yield from sorted(found, key=lambda item: item[0])


def _listing(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise CaseError(folder, f"cannot be listed ({error.strerror})") from error


def _refuse_odd(root: Path, relative: str, facts: os.stat_result) -> None:
    where = root / repr(relative)[1:-1] if not relative.isprintable() else root / relative
    if not relative.isprintable() or "\\" in relative or len(relative) > MAX_NAME_CHARS:
        raise CaseError(where, "the file name holds control characters, a backslash or is too long")
    if stat.S_ISLNK(facts.st_mode):
        raise CaseError(where, "is a link; a case holds plain files only")
    if not stat.S_ISREG(facts.st_mode):
        raise CaseError(where, "is a device, pipe or socket; a case holds plain files only")
    if facts.st_nlink > 1:
        raise CaseError(where, "is a hard link to another file; a case holds plain files only")


def read_file(path: Path, *, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Return the bytes of a plain file of at most `max_bytes`."""
    try:
        if stat.S_ISLNK(os.lstat(path).st_mode):
            raise CaseError(path, "is a link; a case holds plain files only")
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise CaseError(path, "is missing") from error
    except OSError as error:
        raise CaseError(path, f"cannot be read ({error.strerror})") from error
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > max_bytes:
        os.close(handle)
        regular = stat.S_ISREG(facts.st_mode)
        raise CaseError(
            path, f"is larger than {max_bytes} bytes" if regular else "is not a plain file"
        )
    with os.fdopen(handle, "rb") as stream:
        return stream.read(max_bytes)


def read_text(path: Path) -> str:
    """Return a non-empty UTF-8 text."""
    content = read_file(path)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CaseError(path, f"is not UTF-8 (byte {error.start})") from error
    if not text.strip():
        raise CaseError(path, "is empty")
    return text


def read_json(path: Path) -> Any:
    """Return a JSON document without duplicate keys, NaN or infinity."""
    text = read_text(path)
    try:
        return json.loads(
            text,
            object_pairs_hook=_unique_pairs,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except json.JSONDecodeError as error:
        raise CaseError(path, f"line {error.lineno}: {error.msg}") from error
    except RecursionError as error:
        raise CaseError(path, "is nested too deeply") from error
    except ValueError as error:
        raise CaseError(path, _first_line(error)) from error


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for key, value in pairs:
        if key in record:
            raise ValueError(f"key {key!r} stands twice in one object")
        record[key] = value
    return record


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number a case may hold")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:20]} is out of range")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Return a TOML document."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CaseError(path, _first_line(error)) from error
    except RecursionError as error:
        raise CaseError(path, "is nested too deeply") from error
    except ValueError as error:
        raise CaseError(path, _first_line(error)) from error


def as_record(kind: type[R], value: object, path: Path, place: str = "") -> R:
    """Return `value` as a record; the CaseError names the first wrong field and its fault."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise CaseError(path, place + first_fault(error)) from error
    except RecursionError as error:
        raise CaseError(path, "is nested too deeply") from error


def first_fault(error: ValidationError) -> str:
    """Return a fault as `field: what is wrong`: an unknown field, else the first."""
    faults = error.errors(include_url=False, include_context=False)
    fault = min(faults, key=lambda one: one["type"] != "extra_forbidden")
    where = ".".join(str(part) for part in fault["loc"])
    told = str(fault["msg"]).removeprefix("Value error, ")
    return f"{where}: {told}" if where else told


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:300]
