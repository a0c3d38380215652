"""A whole output folder against the sources that its report names (protocol rule 22)."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from typing import Any

from .columns import field_of
from .documents import tables_of
from .reading import MAX_BYTES, TEXT_SUFFIXES, Table, Unreadable, decoded, strict_csv
from .tables import Bag, FileRules, Verdict, compared

RESULT_FILE = "_result.json"
MAX_FILES = 2_000
MAX_SOURCES = 50
_WORSE = {"clean": 0, "unchecked": 1, "rejected": 2}


def checked(job: dict[str, Any], workspace: str, output: str) -> Verdict:
    """Return the worst verdict over all files of the output folder, with every finding."""
    whole = Verdict("clean")
    schema = {str(file["name"]): file for file in job["files"]}
    names = _output_names(output)
    if not names:
        return Verdict("unchecked", ["the output folder holds no file"])
    if len(names) > MAX_FILES:
        return Verdict("rejected", [f"the output folder holds more than {MAX_FILES} files"])
    for name in names:
        verdict = _checked_file(name, schema.get(name), job, workspace, output)
        whole.findings += [f"{name}: {finding}" for finding in verdict.findings]
        whole.verdict = max(whole.verdict, verdict.verdict, key=_WORSE.__getitem__)
    return whole


def _output_names(output: str) -> list[str]:
    found = []
    for base, _, names in os.walk(output):
        for name in names:
            path = os.path.relpath(os.path.join(base, name), output)
            if path != RESULT_FILE:
                found.append(path)
    return sorted(found)


def _checked_file(
    name: str, file: dict[str, Any] | None, job: dict[str, Any], workspace: str, output: str
) -> Verdict:
    try:
        content = read_plain(os.path.join(output, name))
    except Unreadable as error:
        return Verdict("rejected", [str(error)])
    listed = job["sources"].get(name) or []
    if not listed:
        return Verdict("rejected", ["it names no source"])
    if len(listed) > MAX_SOURCES:
        return Verdict("rejected", ["it names too many sources"])
    sources: list[tuple[str, bytes]] = []
    for path, digest in listed:
        found = source_bytes(workspace, str(path), str(digest))
        if isinstance(found, str):
            return Verdict("rejected", [f"source {str(path)[:80]!r} {found}"])
        sources.append((str(path), found))
    if any(content == source for _, source in sources):
        return Verdict("clean", [])
    if file is None or is_code(name):
        return Verdict("rejected", ["it differs from its source byte for byte"])
    if file.get("format") == "text":
        return _checked_text(content, sources)
    return _checked_table(name, file, content, sources, job)


def is_code(name: str) -> bool:
    return name.endswith((".py", ".sh", ".js", ".jl", ".r", ".R", ".c", ".cpp", ".rs", ".go"))


def read_plain(path: str) -> bytes:
    """Return the bytes of a plain file of a size we read; Unreadable otherwise."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        raise Unreadable("is no plain file") from None
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode):
        os.close(handle)
        raise Unreadable("is no plain file")
    with os.fdopen(handle, "rb") as stream:
        if facts.st_size > MAX_BYTES:
            raise Unreadable("is too large")
        return stream.read(MAX_BYTES + 1)


def source_bytes(workspace: str, path: str, digest: str) -> bytes | str:
    """Return the content of a named source, or what is wrong with naming it."""
    relative = path.removeprefix("/workspace/")
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    if relative.startswith("/") or ".." in parts or "\0" in relative or not parts:
        return "is outside the workspace"
    if parts[0] == "data":
        return "is input data, not the agent's work"
    root = os.path.realpath(workspace)
    whole = os.path.join(root, *parts)
    if os.path.realpath(whole) != whole:
        return "is a link"
    try:
        content = read_plain(whole)
    except Unreadable as error:
        return str(error) if os.path.exists(whole) else "does not exist"
    if hashlib.sha256(content).hexdigest() != digest.lower():
        return "has another SHA-256"
    return content


def _checked_text(content: bytes, sources: list[tuple[str, bytes]]) -> Verdict:
    try:
        words = decoded(content).split()
        texts = [decoded(source).split() for _, source in sources]
    except Unreadable as error:
        return Verdict("unchecked", [str(error)])
    for text in texts:
        if words == text:
            return Verdict("clean", ["equal but for white space"])
        remaining = iter(text)
        if all(word in remaining for word in words):
            return Verdict("clean", ["an extract of its source"])
    return Verdict("rejected", ["it holds words that its source does not hold in this order"])


def _checked_table(
    name: str,
    file: dict[str, Any],
    content: bytes,
    sources: list[tuple[str, bytes]],
    job: dict[str, Any],
) -> Verdict:
    fields = [field_of(item, job["unit_factors"], name) for item in file["fields"]]
    rules = FileRules(fields, str(file.get("row_set", "graded")), job["rows"].get(name))
    try:
        if file.get("format") == "csv":
            target = strict_csv(content)
        else:
            target = _target_table(content, name, {f.name for f in fields})
    except Unreadable as error:
        return Verdict("unchecked", [f"it {error}"])
    tables: list[Table] = []
    unread: list[str] = []
    for path, source in sources:
        try:
            found = tables_of(source, path)
        except Unreadable as error:
            unread.append(f"source {path[:80]!r}: {error}")
            continue
        tables += found
    if unread and not tables:
        return Verdict("unchecked", unread)
    verdict = compared(rules, target, tables, lambda: _bag_of(sources, tables))
    if verdict.verdict == "rejected" and unread:
        return Verdict("unchecked", [*unread, *verdict.findings])
    return verdict


def _bag_of(sources: list[tuple[str, bytes]], tables: list[Table]) -> Bag:
    bag = Bag()
    for table in tables:
        bag.add_table(table)
    for path, source in sources:
        suffix = path.rsplit(".", 1)[-1].lower() if "." in path else ""
        if suffix in TEXT_SUFFIXES or is_code(path):
            with contextlib.suppress(Unreadable):
                bag.add(decoded(source))
    return bag


def _target_table(content: bytes, name: str, wanted: set[str]) -> Table:
    tables = tables_of(content, name)
    if not tables:
        raise Unreadable("holds no table")
    for table in tables:
        table.columns = [_last(column, wanted) for column in table.columns]
    return max(tables, key=lambda t: len(wanted & set(t.columns)))


def _last(column: str, wanted: set[str]) -> str:
    return column if column in wanted or "." not in column else column.rsplit(".", 1)[-1]
