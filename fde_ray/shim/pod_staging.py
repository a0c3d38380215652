"""The volumes of a pod, filled in place: the shim has them all writable, the agent as asked."""

from __future__ import annotations

import os

from .inputs import BadInput, InputFile, Inputs, Mount
from .plane import Plane
from .pod_site import PodMount
from .staging import Staging, remove_tree

PYTHON = "/usr/bin/python3"
"""Of the image."""


class PodStaging(Staging):
    """Folders are given and stay: they are mount points."""

    def __init__(self, mounts: tuple[PodMount, ...], inputs: Inputs) -> None:
        super().__init__(inputs, PYTHON)
        self._dirs = {mount.at: mount.dir for mount in mounts}
        self._tried: set[str] = set()
        self._done: set[str] = set()

    def _filled(self, plane: Plane, number: int, mount: Mount) -> str:
        folder = self._dir(mount.at)
        if folder in self._done:
            return folder
        if folder in self._tried:
            _clear(folder, self._mounted_in(mount.at))
        self._tried.add(folder)
        self._fetch(plane, mount.archive, folder)
        self._done.add(folder)
        return folder

    def _mounted_in(self, at: str) -> set[str]:
        """Return the names in a volume that other volumes of the agent are mounted on, or below."""
        below = (one.removeprefix(at + "/") for one in self._dirs if one.startswith(at + "/"))
        return {name.partition("/")[0] for name in below}

    def _empty(self, number: int, at: str) -> str:
        return self._dir(at)

    def _dir(self, at: str) -> str:
        if at not in self._dirs:
            raise BadInput(f"the pod has no volume at {at}")
        return self._dirs[at]

    def _place(self, at: str, number: int) -> tuple[str, str]:
        host = self.host_path(at)
        root = next((d for d in self._dirs.values() if host and host.startswith(d + "/")), None)
        if host is None or root is None:
            raise BadInput(f"{at} lies in no volume of the pod")
        return host, root

    def _written(self, file: InputFile, host: str) -> None:
        """A file cannot be bound alone here: its mode has to do."""
        os.chmod(host, 0o444 if file.read_only else 0o644)


def _clear(folder: str, spared: set[str]) -> None:
    """Remove what an earlier try left in a mount point."""
    with os.scandir(folder) as entries:
        for entry in [each for each in entries if each.name not in spared]:
            if entry.is_dir(follow_symlinks=False):
                remove_tree(entry.path)
            else:
                os.unlink(entry.path)
