"""MANIFEST.sha256: one line `<sha256>  <path>` for every other file of a package."""

import re
from collections.abc import Sequence
from pathlib import Path

from fde_ray.cases.foreign import MAX_DATA_BYTES, read_file, read_text
from fde_ray.model.base import sha256_hex
from fde_ray.model.errors import CaseError

MANIFEST = "MANIFEST.sha256"
_LINE = re.compile(r"([0-9a-f]{64})  (\S.*)")


def read_manifest(root: Path) -> dict[str, str]:
    """Return the hash of each listed file."""
    path = root / MANIFEST
    listed: dict[str, str] = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise CaseError(path, f"line {number}: is not '<sha256>  <path>'")
        digest, name = match.groups()
        if name in listed:
            raise CaseError(path, f"line {number}: {name!r} is listed twice")
        listed[name] = digest
    return listed


def checked_manifest(root: Path, names: Sequence[str]) -> None:
    """Compare the manifest with the files that are there; the first difference is a CaseError."""
    listed = read_manifest(root)
    present = [name for name in names if name != MANIFEST]
    for name in present:
        if name not in listed:
            raise CaseError(root / name, "is not listed in MANIFEST.sha256")
    for name in sorted(listed):
        if name not in present:
            raise CaseError(root / MANIFEST, f"lists {name!r}, which is not there")
        if sha256_hex(read_file(root / name, max_bytes=MAX_DATA_BYTES)) != listed[name]:
            raise CaseError(root / name, "differs from its hash in MANIFEST.sha256")
