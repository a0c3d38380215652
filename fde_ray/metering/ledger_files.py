"""Ledger rows in files: JSON lines, plain or gzip, one by one or in folders as they are pulled."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path

from pydantic import ValidationError

from fde_ray.model.base import canonical_json
from fde_ray.model.errors import SpecError, UserError
from fde_ray.model.ledgers import LedgerLine

MOST_BYTES = 1_000_000
ENDINGS = (".jsonl", ".jsonl.gz")
_WHOLE = ("ledger.jsonl", "ledger.jsonl.gz")
_PART = re.compile(r"[A-Za-z0-9._-]{1,250}-[0-9]{6,}\.jsonl(\.gz)?")
"""`<replica>-<seq>`, after the names of run and attempt in a pulled folder."""


def lines_in(place: Path) -> list[LedgerLine]:
    """Return the rows of a file, or of a folder's ledger, each once, in order.

    A ledger in a folder is `ledger.jsonl` and the parts that planes write, in `calls/` if that is
    there. UserError says what is wrong, with file and line.
    """
    found: dict[tuple[str, int], LedgerLine] = {}
    for path in _files(place):
        for line in _lines(path):
            known = found.get(line.key)
            if known is None or (known.finished_at or 0.0) < (line.finished_at or 0.0):
                found[line.key] = line
    return sorted(found.values(), key=lambda line: line.place)


def ledger_bytes(lines: Iterable[LedgerLine]) -> bytes:
    """Return `ledger.jsonl`: the same rows give the same bytes, in whatever order they come."""
    ordered = sorted(lines, key=lambda line: line.place)
    return "".join(canonical_json(line) + "\n" for line in ordered).encode()


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise UserError(f"there is no ledger at {place}: no such file or folder")
    found = [path for path in _rows_in(place) if _is_ledger(path)]
    if not found:
        raise UserError(f"{place} holds no ledger; pull it with `results pull --only calls`")
    return found


def skipped_in(place: Path) -> list[Path]:
    """Return the files of rows in a folder that are no part of its ledger, going by their names."""
    return [path for path in _rows_in(place) if not _is_ledger(path)] if place.is_dir() else []


def _rows_in(folder: Path) -> list[Path]:
    calls = folder / "calls" if (folder / "calls").is_dir() else folder
    return sorted(path for path in calls.iterdir() if path.name.endswith(ENDINGS))


def _is_ledger(path: Path) -> bool:
    return path.name in _WHOLE or _PART.fullmatch(path.name) is not None


def _lines(path: Path) -> Iterator[LedgerLine]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from _parsed(file, path)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise SpecError("not whole gzip data", path=str(path)) from error
    except OSError as error:
        raise SpecError(f"cannot be read ({error.strerror})", path=str(path)) from error


def _parsed(file: gzip.GzipFile | BufferedReader, path: Path) -> Iterator[LedgerLine]:
    number = 0
    while text := file.readline(MOST_BYTES + 1):
        number += 1
        if len(text) > MOST_BYTES:
            raise SpecError(f"longer than {MOST_BYTES} bytes", path=str(path), line=number)
        try:
            yield LedgerLine.model_validate_json(text)
        except ValidationError as error:
            raise SpecError(_fault(error), path=str(path), line=number) from error


def _fault(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"no ledger row: {where or 'JSON'}: {first['msg']}"
