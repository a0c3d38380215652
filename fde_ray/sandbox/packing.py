"""Packs `fde_ray.shim` into one zipapp: equal sources give equal bytes.

`python -m fde_ray.sandbox.packing FOLDER` writes what the Containerfiles of run images copy.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import marshal
import os
import sys
import zipfile
from pathlib import Path

from fde_ray import shim
from fde_ray.shim.evaluating import COMMAND, launcher
from fde_ray.shim.pod_staging import PYTHON

SOURCES = Path(shim.__file__).parent
_EPOCH = (1980, 1, 1, 0, 0, 0)
_STARTER = "import sys\nfrom fde_ray.shim.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"


def shim_sources() -> dict[str, bytes]:
    """Return name -> source of every module of the shim."""
    return {
        path.relative_to(SOURCES).as_posix(): path.read_bytes()
        for path in sorted(SOURCES.rglob("*.py"))
    }


def sources_hash(sources: dict[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name in sorted(sources):
        whole.update(f"{name}\0{hashlib.sha256(sources[name]).hexdigest()}\n".encode())
    return whole.hexdigest()


def zipapp_bytes(sources: dict[str, bytes]) -> bytes:
    """Return the zipapp. It holds sources for any Python and compiled code for the one we run."""
    members = {"__main__.py": _STARTER.encode()}
    members["fde_ray/__init__.py"] = b""
    members |= {f"fde_ray/shim/{name}": source for name, source in sources.items()}
    buffer = io.BytesIO()
    buffer.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(members):
            _add(archive, name, members[name])
            if name != "__main__.py":
                _add(archive, name + "c", _compiled(name, members[name]))
    return buffer.getvalue()


def _compiled(name: str, source: bytes) -> bytes:
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    # An unchecked-hash header, as PEP 552 has it; marshal version 2 because later ones write
    # back-references that differ from process to process.
    header = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little")
    return header + importlib.util.source_hash(source) + marshal.dumps(code, 2)


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.external_attr = 0o644 << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, data)


def build_zipapp(home: Path) -> Path:
    """Return the zipapp below `home`, made when its sources or our Python are new."""
    sources = shim_sources()
    key = sources_hash(sources)[:16]
    target = home / "shim" / f"fde-shim-{key}-{sys.implementation.cache_tag}.pyz"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_suffix(f".{os.getpid()}.new")
    new.write_bytes(zipapp_bytes(sources))
    new.chmod(0o755)
    new.replace(target)
    return target


def image_files() -> dict[str, bytes]:
    """Return name -> content of what an image for runs holds below /opt/fde."""
    return {
        "fde-shim.pyz": zipapp_bytes(shim_sources()),
        COMMAND: launcher(PYTHON).encode(),
    }


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("usage: python -m fde_ray.sandbox.packing FOLDER", file=sys.stderr)
        return 2
    folder = Path(argv[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in image_files().items():
        (folder / name).write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
