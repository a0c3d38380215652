"""Packs the three archives of a case, each from its own allow-list.

Only the visible archive may ever reach a solving run: instruction.md and data/**. The extract
archive adds what an extractor reads; the sealed one goes to the scorer alone. Names inside the
extract and sealed archives have no `sealed/` in front. Equal contents give equal bytes.
"""

import gzip
import io
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fde_ray.cases.authoring.strict_reader import tree_hash
from fde_ray.cases.foreign import MAX_DATA_BYTES, read_file, tree_files
from fde_ray.cases.package import visible_files
from fde_ray.cases.records import Case
from fde_ray.model.base import sha256_hex
from fde_ray.model.errors import CaseError

_EXTRACT = ("information.md", "submission_schema.json")
_SEALED = ("evaluator.py", "gt.json", "params.json", "reference.json", "submission_schema.json")


@dataclass(frozen=True)
class Archive:
    """A tar.gz and the SHA-256 of its bytes."""

    content: bytes
    sha256: str


def visible_archive(case: Case) -> Archive:
    """Return instruction.md and data/**, and nothing else."""
    entries = visible_files(case.root, _names(case.root))
    if tree_hash(entries) != case.visible_hash:
        raise CaseError(case.root, "visible files changed after the case was loaded")
    return _packed(entries)


def extract_archive(case: Case) -> Archive:
    """Return information.md and submission_schema.json."""
    return _packed([(name, read_file(case.root / "sealed" / name)) for name in _EXTRACT])


def sealed_archive(case: Case) -> Archive:
    """Return evaluator, params, truth, reference, gt and schema, for the scorer."""
    truth = [name for name in _names(case.root) if name.startswith("sealed/truth/")]
    names = [*(f"sealed/{name}" for name in _SEALED), *truth]
    return _packed(
        [
            (name.removeprefix("sealed/"), read_file(case.root / name, max_bytes=MAX_DATA_BYTES))
            for name in names
        ]
    )


def data_files(case: Case) -> tuple[str, ...]:
    """Return the sorted names directly under data/, as the prompt lists them."""
    inside = [name.split("/") for name in _names(case.root) if name.startswith("data/")]
    return tuple(sorted({parts[1] for parts in inside}))


def _names(root: Path) -> list[str]:
    return [name for name, _ in tree_files(root)]


def _packed(entries: Sequence[tuple[str, bytes]]) -> Archive:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in sorted(entries):
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(content), 0o644, 0
            tar.addfile(member, io.BytesIO(content))
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=6, mtime=0) as stream:
        stream.write(plain.getvalue())
    return Archive(packed.getvalue(), sha256_hex(packed.getvalue()))
