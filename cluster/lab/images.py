"""Makes the images of the lab without a registry: Debian packages in, OCI archives out.

Each archive lies in the cache under its name, beside a key of all that went into it.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fde_ray.model.base import digest, sha256_hex
from fde_ray.model.errors import UserError, shortened
from fde_ray.sandbox.packing import image_files

from .building import Say
from .layout import SOURCES, Layout, image
from .machine import check_root, lacking_for_images
from .modules import TABLE, build_folder
from .providing import provide

SUITE = "bookworm"
PACKAGES = ("bash", "ca-certificates", "iproute2", "netcat-openbsd", "procps", "python3", "wget")
_SCRATCH = ".image-"
_RECIPES = SOURCES / "images"
_OF_RUNS = SOURCES.parents[1] / "sandbox_images"


class Image(NamedTuple):
    """name: of its folder in `recipes`, which holds the Containerfile. files: what that copies."""

    name: str
    files: Mapping[str, bytes] = {}
    needs: tuple[str, ...] = ()
    """Images that it starts from."""
    recipes: Path = _RECIPES


def make_images(layout: Layout, say: Say, names: Sequence[str] = ()) -> None:
    """Make what is missing or older than its recipe; only the named ones when there are names."""
    check_root()
    provide(lacking_for_images, say)
    for cut_off in layout.cache.glob(f"{_SCRATCH}*"):
        shutil.rmtree(cut_off, ignore_errors=True)
    keys: dict[str, str] = {}
    for each in _table(layout):
        keys[each.name] = _key(each, keys)
        if names and each.name not in names:
            continue
        if _is_made(layout, each.name, keys[each.name]):
            say(f"image {each.name} is there")
            continue
        say(f"making image {each.name} ..." + " (two minutes)" * (each.name == "base"))
        _make(layout, each, keys[each.name])
    say(f"images ready in {layout.images}")


def _table(layout: Layout) -> tuple[Image, ...]:
    pause = next(module for module in TABLE if module.name == "pause")
    folder = build_folder(layout.builds, pause)
    if not folder.is_dir():
        raise UserError("the pause program is not built yet: run `make lab-build`")
    return (
        Image("pause", {"pause": (folder / "pause").read_bytes()}),
        Image("base"),
        Image("runner", needs=("base",)),
        Image("run", image_files(), needs=("base",), recipes=_OF_RUNS),
    )


def _key(each: Image, keys: dict[str, str]) -> str:
    recipe = (each.recipes / each.name / "Containerfile").read_text()
    inputs = {name: sha256_hex(data) for name, data in each.files.items()}
    packages = [SUITE, *PACKAGES] if each.name == "base" else []
    return digest([recipe, inputs, packages, [keys[name] for name in each.needs]])[:20]


def _is_made(layout: Layout, name: str, key: str) -> bool:
    archive = layout.images / f"{name}.tar"
    marker = archive.with_suffix(".key")
    return archive.exists() and marker.exists() and marker.read_text() == key


def _make(layout: Layout, each: Image, key: str) -> None:
    layout.images.mkdir(parents=True, exist_ok=True)
    archive = layout.images / f"{each.name}.tar"
    with tempfile.TemporaryDirectory(dir=layout.cache, prefix=_SCRATCH) as scratch:
        context = Path(scratch) / "context"
        shutil.copytree(each.recipes / each.name, context)
        for name, data in each.files.items():
            (context / name).write_bytes(data)
            (context / name).chmod(0o755)
        if each.name == "base":
            _bootstrap(context / "root.tar")
        for needed in each.needs:
            _buildah(layout, scratch, ["pull", f"oci-archive:{layout.images}/{needed}.tar"])
        reference = image(each.name)
        _buildah(layout, scratch, ["bud", "--timestamp=0", "--pull-never", f"--tag={reference}",
                                   f"--file={context}/Containerfile", str(context)])  # fmt: skip
        new = Path(scratch) / "new.tar"
        _buildah(layout, scratch, ["push", reference, f"oci-archive:{new}:{reference}"])
        archive.with_suffix(".key").unlink(missing_ok=True)
        new.rename(archive)
        archive.with_suffix(".key").write_text(key)


def _bootstrap(target: Path) -> None:
    include = f"--include={','.join(PACKAGES)}"
    patience = '--aptopt=Acquire::Retries "5"'
    _run(["mmdebstrap", "--quiet", "--variant=minbase", patience, include, SUITE, str(target)])


def _buildah(layout: Layout, scratch: str, words: Sequence[str]) -> None:
    """Its store is scratch, its mounts its own; `chroot` because nested groups may be refused."""
    store = ["--root", f"{scratch}/store", "--runroot", f"{scratch}/run"]
    _run(["unshare", "--mount", "env", "BUILDAH_ISOLATION=chroot", "buildah", *store, *words])


def _run(argv: Sequence[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        said = shortened(done.stderr.strip()[-400:] or done.stdout.strip()[-400:])
        raise UserError(f"`{shortened(' '.join(argv), 120)}` failed: {said}")
