"""Ledger rows in files: JSON lines, plain or gzip, one by one or in folders as they are pulled."""

from __future__ import annotations

import gzip
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


def lines_in(place: Path) -> list[LedgerLine]:
    """Return the rows of a file, or of a folder's `calls/` and `ledger.jsonl`, each once, in order.

    UserError says what is wrong, with file and line.
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
    calls = place / "calls" if (place / "calls").is_dir() else place
    found = sorted(path for path in calls.iterdir() if path.name.endswith(ENDINGS))
    if not found:
        raise UserError(f"{place} holds no ledger; pull it with `results pull --only calls`")
    return found


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
