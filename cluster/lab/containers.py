"""containerd's store: images are imported once, what pods leave in it is forgotten at each start.

The catalogue of the images alone is kept beside the live one. A new cluster starts from it, so no
container of an earlier one is ever known again, however that one ended.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fde_ray.model.errors import UserError

from .building import Say
from .fence import run
from .layout import Layout
from .processes import last_lines

_READY_S = 20.0
_IMPORT_S = 300.0


class Archive(NamedTuple):
    """An image as it lies in the cache. key: changes with its content."""

    path: Path
    key: str

    @property
    def name(self) -> str:
        return self.path.stem


def archives(layout: Layout) -> list[Archive]:
    """Return the images that every cluster holds: `pause` first, then by name."""
    keys = sorted(layout.images.glob("*.key"), key=lambda p: (p.stem != "pause", p.stem))
    return [Archive(key.with_suffix(".tar"), key.read_text()) for key in keys]


class Store:
    """The store of a lab. enter: the command prefix that leads inside the fence."""

    def __init__(self, layout: Layout, enter: Sequence[str], env: Mapping[str, str]) -> None:
        self._layout, self._enter, self._env = layout, enter, env
        root = layout.container_root
        self._catalogue = root / "io.containerd.metadata.v1.bolt" / "meta.db"
        self._images_only = root / "images-only.db"
        self._imported = root / "imported"
        self._only_here = layout.home / "images"
        """Keys of what this lab alone has: the catalogue of the next one does not know it."""

    def reset(self) -> None:
        """Forget every container; containerd must not run. Without a catalogue, forget all."""
        if self._images_only.exists() and self._catalogue.exists():
            shutil.copyfile(self._images_only, self._catalogue)
        else:
            shutil.rmtree(self._layout.container_root, ignore_errors=True)

    def wait(self) -> None:
        """Return when containerd answers."""
        give_up = time.monotonic() + _READY_S
        while subprocess.run(self._ctr("version"), capture_output=True, check=False).returncode:
            if time.monotonic() > give_up:
                said = last_lines(self._layout.logs / "containerd.log")
                raise UserError(f"containerd does not answer: {said}")
            time.sleep(0.05)

    def missing(self) -> list[Archive]:
        """Return the archives whose present content is not in the store."""
        return [each for each in archives(self._layout) if self._known(each) != each.key]

    def add(self, archive: Archive, say: Say, *, only_here: bool = False) -> None:
        """Import an image. only_here: the next lab has to import it again."""
        say(f"importing image {archive.name} ...")
        if only_here:
            # What it replaces is collected, and the kept catalogue would go on naming that.
            self._images_only.unlink(missing_ok=True)
        run(self._ctr("images", "import", str(archive.path)), timeout_s=_IMPORT_S, env=self._env)
        notes = self._only_here if only_here else self._imported
        notes.mkdir(parents=True, exist_ok=True)
        (notes / archive.name).write_text(archive.key)

    def keep_catalogue(self) -> None:
        """Remember the images of now; there must be no container yet, and no containerd."""
        new = self._images_only.with_suffix(".new")
        shutil.copyfile(self._catalogue, new)
        new.rename(self._images_only)

    def _known(self, archive: Archive) -> str | None:
        for notes in (self._only_here, self._imported):
            with contextlib.suppress(OSError):
                return (notes / archive.name).read_text()
        return None

    def _ctr(self, *words: str) -> list[str]:
        """The path of the socket has to be absolute."""
        socket = str(self._layout.containerd_socket)
        program = str(self._layout.bin / "ctr")
        return [*self._enter, program, "--address", socket, "--namespace", "k8s.io", *words]
