"""Workspaces as folders: unpacked from a collected archive, and named by their contents.

An archive is one tar+gzip stream in parts. It comes from a machine where an agent lived, so every
header is foreign input: only plain files and folders below the destination are ever created.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterable, Iterable, Iterator
from pathlib import Path

from fde_ray.model.base import Record
from fde_ray.model.errors import RunFailure
from fde_ray.model.failures import FailureKind

from .archives import Caps, Member, Members

MAX_FINDINGS = 100
NOT_DELIVERABLE = (b"NOTES.md", b"instruction.md")
_CHUNK = 1 << 20


class Unpacked(Record):
    """What came out of an archive. `findings`: entries left out, with the reason."""

    tree_hash: str
    files: int
    size_bytes: int
    findings: tuple[str, ...] = ()


async def unpack_parts(chunks: AsyncIterable[bytes], dest: Path, caps: Caps) -> Unpacked:
    """Unpack a tar+gzip stream into `dest`, which must not exist or be empty.

    Modes become 0644 or 0755. Links, devices and pipes are left out with a finding. Unsafe or
    repeated names and broken streams raise RunFailure(COLLECTION_FAILED); whatever is over a cap
    raises RunFailure(AGENT_RESOURCE). After an error `dest` is as it was before.
    """
    dest.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=dest.parent, prefix=".unpack-") as scratch:
        packed = Path(scratch) / "stream"
        await _spool(chunks, packed, caps)
        return await asyncio.to_thread(_unpack_file, packed, Path(scratch) / "tree", dest, caps)


async def _spool(chunks: AsyncIterable[bytes], packed: Path, caps: Caps) -> None:
    size = 0
    with packed.open("wb") as stream:
        async for chunk in chunks:
            size += len(chunk)
            if size > caps.packed_bytes:
                raise RunFailure(FailureKind.AGENT_RESOURCE, "the archive is over its size cap")
            await asyncio.to_thread(stream.write, chunk)


def _unpack_file(packed: Path, tree: Path, dest: Path, caps: Caps) -> Unpacked:
    findings: list[str] = []
    made: dict[bytes, bool] = {b"": True}
    tree.mkdir()
    with packed.open("rb") as stream:
        for member in Members(stream, caps):
            if member.refusal:
                _note(findings, member)
            elif member.is_folder:
                _make_folders(tree, member.parts, made)
            else:
                _make_folders(tree, member.parts[:-1], made)
                _write(tree, member, made)
    facts = tree_facts(tree)
    tree.chmod(0o755)
    if dest.exists():
        dest.rmdir()
    tree.rename(dest)
    return facts.evolve(findings=tuple(findings))


def _note(findings: list[str], member: Member) -> None:
    if len(findings) < MAX_FINDINGS:
        findings.append(f"{shown(member.path)}: {member.refusal}")


def _make_folders(tree: Path, parts: tuple[bytes, ...], made: dict[bytes, bool]) -> None:
    for depth in range(1, len(parts) + 1):
        path = b"/".join(parts[:depth])
        if made.setdefault(path, True) is False:
            raise RunFailure(FailureKind.COLLECTION_FAILED, f"{shown(path)}: a file and a folder")
        target = os.path.join(os.fsencode(tree), path)
        if not os.path.isdir(target):
            os.mkdir(target)
            os.chmod(target, 0o755)  # noqa: S103 - a normal folder


def _write(tree: Path, member: Member, made: dict[bytes, bool]) -> None:
    if member.path in made:
        raise RunFailure(FailureKind.COLLECTION_FAILED, f"{shown(member.path)}: is there twice")
    made[member.path] = False
    target = os.path.join(os.fsencode(tree), member.path)
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "wb") as stream:
        for block in member.content:
            stream.write(block)
        os.fchmod(stream.fileno(), 0o755 if member.executable else 0o644)


def shown(path: bytes) -> str:
    """Return a path of any bytes as printable text, cut short."""
    text = path[:200].decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def regular_files(folder: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield (relative path, path on disk) of every plain file below `folder`, sorted; no links."""
    root = os.fsencode(folder)
    found = []
    for base, _, names in os.walk(root, followlinks=False):
        for name in names:
            path = os.path.join(base, name)
            if os.path.isfile(path) and not os.path.islink(path):
                found.append((os.path.relpath(path, root), path))
    yield from sorted(found)


def tree_facts(folder: Path, without: Iterable[bytes] = ()) -> Unpacked:
    """Return hash, number and total size of the plain files of `folder`, `without` some."""
    skipped = set(without)
    whole = hashlib.sha256()
    files = size = 0
    for relative, path in regular_files(folder):
        if relative in skipped:
            continue
        whole.update(relative + b"\0" + file_sha256(path).encode() + b"\n")
        files += 1
        size += os.path.getsize(path)
    return Unpacked(tree_hash=whole.hexdigest(), files=files, size_bytes=size)


def tree_hash(folder: Path, without: Iterable[bytes] = ()) -> str:
    """Return the SHA-256 over sorted `path NUL sha256-of-content NEWLINE` lines."""
    return tree_facts(folder, without).tree_hash


def file_sha256(path: Path | bytes) -> str:
    """Return the SHA-256 (hex) of a file's content."""
    total = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(_CHUNK):
            total.update(block)
    return total.hexdigest()


def has_deliverable(folder: Path, ignored: Iterable[str] = ()) -> bool:
    """Tell whether a file beside `data/`, notes and `ignored` top-level names is there."""
    skipped = {*NOT_DELIVERABLE, b"data", *(os.fsencode(name) for name in ignored)}
    return any(path.split(b"/")[0] not in skipped for path, _ in regular_files(folder))


def emptied(folder: Path) -> Path:
    """Return `folder`, made anew without contents."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder
