"""The folder that results are pulled into: files that are whole, and receipts that say which.

A file gets its name once its bytes are there and right, then a line in `.pull/receipts.jsonl`.
What a killed pull leaves behind is a `.part` beside the file, and at most one torn line.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

from pydantic import Field, ValidationError

from fde_ray.model.base import Record
from fde_ray.model.errors import UserError
from fde_ray.store.results import Mark

R = TypeVar("R", bound=Record)
BOOKS = ".pull"
READ_BYTES = 1 << 20


class Receipt(Record):
    path: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size_bytes: int = Field(ge=0)


class Completed(Record):
    """All objects of these kinds were fetched of a run whose state is final."""

    run_id: str
    grade_id: str
    kinds: tuple[str, ...]


class Keeper:
    """Use as a context: one pull at a time works in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._receipts: dict[str, Receipt] = {}
        self._marks: dict[tuple[str, str], Mark] = {}
        self._completed: dict[tuple[str, str], set[str]] = {}
        self._books: dict[str, IO[bytes]] = {}

    def __enter__(self) -> Keeper:
        with _writing(self.folder):
            (self.folder / BOOKS).mkdir(parents=True, exist_ok=True)
            for book in ("lock", "receipts.jsonl", "marks.jsonl", "completed.jsonl"):
                self._books[book] = (self.folder / BOOKS / book).open("a+b")
        try:
            fcntl.flock(self._books["lock"], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.__exit__()
            raise UserError(f"another pull is at work in {self.folder}") from None
        self._read_books()
        return self

    def __exit__(self, *_: object) -> None:
        for book in self._books.values():
            book.close()
        self._books.clear()

    def _read_books(self) -> None:
        for receipt in _lines(self._books["receipts.jsonl"], Receipt):
            self._receipts[receipt.path] = receipt
        for mark in _lines(self._books["marks.jsonl"], Mark):
            self._marks[mark.run_id, mark.grade_id] = mark
        for done in _lines(self._books["completed.jsonl"], Completed):
            self._completed.setdefault((done.run_id, done.grade_id), set()).update(done.kinds)

    def mark(self, run: str, grade: str) -> Mark | None:
        """Return the mark of a run that was read before and can change no more."""
        return self._marks.get((run, grade))

    def keep_mark(self, mark: Mark) -> None:
        if mark.is_final and self.mark(mark.run_id, mark.grade_id) != mark:
            self._marks[mark.run_id, mark.grade_id] = mark
            self._note("marks.jsonl", mark)

    def completed(self, run: str, grade: str) -> frozenset[str]:
        return frozenset(self._completed.get((run, grade), ()))

    def complete(self, run: str, grade: str, kinds: tuple[str, ...]) -> None:
        self._completed.setdefault((run, grade), set()).update(kinds)
        self._note("completed.jsonl", Completed(run_id=run, grade_id=grade, kinds=kinds))

    def has(self, path: str) -> bool:
        """Tell whether a file was fetched, and is there with its size."""
        receipt = self._receipts.get(path)
        try:
            return receipt is not None and (self.folder / path).stat().st_size == receipt.size_bytes
        except OSError:
            return False

    def held(self, path: str, sha256: str) -> bytes | None:
        """Return the bytes of a small file if they have this hash; None = fetch it."""
        try:
            data = (self.folder / path).read_bytes()
        except OSError:
            return None
        return data if hashlib.sha256(data).hexdigest() == sha256 else None

    def keep(self, path: str, data: bytes) -> None:
        """Write a small file whole."""
        with self.draft(path) as draft, _writing(self.folder / path):
            draft.write_bytes(data)
            self.finish(path, draft, hashlib.sha256(data).hexdigest(), len(data))

    @contextmanager
    def draft(self, path: str) -> Iterator[Path]:
        """Hand out where to put the bytes of a file until they are whole; it may hold some."""
        target = self.folder / path
        with _writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            yield target.with_name(f".{target.name}.part")

    def finish(self, path: str, draft: Path, sha256: str, size_bytes: int) -> None:
        """Give a draft its name, and note it."""
        with _writing(self.folder / path):
            draft.replace(self.folder / path)
        receipt = Receipt(path=path, sha256=sha256, size_bytes=size_bytes)
        self._receipts[path] = receipt
        self._note("receipts.jsonl", receipt)

    def _note(self, book: str, line: Record) -> None:
        with _writing(self.folder / BOOKS / book):
            self._books[book].write(line.model_dump_json().encode() + b"\n")
            self._books[book].flush()


def receipts_of(folder: Path) -> list[Receipt]:
    """Return what was fetched into a folder, the last of each path; [] = nothing was."""
    try:
        with (folder / BOOKS / "receipts.jsonl").open("rb") as book:
            found = {receipt.path: receipt for receipt in _parsed(book, Receipt)}
    except OSError:
        return []
    return [found[path] for path in sorted(found)]


def is_whole(folder: Path, receipt: Receipt) -> bool:
    """Tell whether a file still has the bytes that were fetched."""
    digest = hashlib.sha256()
    try:
        with (folder / receipt.path).open("rb") as file:
            while piece := file.read(READ_BYTES):
                digest.update(piece)
    except OSError:
        return False
    return digest.hexdigest() == receipt.sha256


def _lines(book: IO[bytes], record: type[R]) -> list[R]:
    """Return the sound lines of a book, and cut off a line that was never finished."""
    book.seek(0)
    found = list(_parsed(book, record))
    size = book.seek(0, os.SEEK_END)
    if size:
        book.seek(size - 1)
        if book.read(1) != b"\n":
            book.write(b"\n")
    return found


def _parsed(book: IO[bytes], record: type[R]) -> Iterator[R]:
    for line in book:
        try:
            yield record.model_validate_json(line)
        except ValidationError:
            continue


@contextmanager
def _writing(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {place}: {error.strerror}") from error
