"""The one volume of a scoring pod: filled anew for each program, which only reads it."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .inputs import BadInput
from .pod_site import PodMount
from .staging import remove_tree
from .unpacking import unpack
from .wire import Exchange

CAP_BYTES = 64 << 30
"""The volume has a size of its own, which the kubelet looks after."""


class Folder(NamedTuple):
    """Of a program: its place among the program's folders, where it goes, and what it is."""

    number: int
    at: str
    key: str
    below: str


class BoxFolders:
    """Folders that the next program has, too, stay; it can have changed nothing in them."""

    def __init__(self, mounts: Sequence[PodMount]) -> None:
        self._mounts = mounts
        self._there: dict[str, tuple[str, str]] = {}

    def fill(self, folders: Sequence[Folder], fetch: Callable[[int], Exchange]) -> None:
        """Have these folders and no others. What `fetch` and `unpack` raise is passed on."""
        wanted = {one.at: (one.key, one.below) for one in folders}
        if len(wanted) != len(folders) or any(
            a != b and b.startswith(a + "/") for a in wanted for b in wanted
        ):
            raise BadInput("a folder of the program lies in another one")
        for at in [at for at, what in self._there.items() if wanted.get(at) != what]:
            del self._there[at]
        self._clear()
        for one in folders:
            if one.at not in self._there:
                self._add(one, fetch)
                self._there[one.at] = (one.key, one.below)

    def _add(self, one: Folder, fetch: Callable[[int], Exchange]) -> None:
        target = self._place(one.at)
        os.makedirs(target, mode=0o755, exist_ok=True)
        with fetch(one.number) as reply:
            unpack(reply.read, target, cap_bytes=CAP_BYTES, below=one.below)

    def _place(self, at: str) -> str:
        if posixpath.normpath(at) != at:
            raise BadInput(f"{at!r} is not a clean path")
        for mount in self._mounts:
            if at.startswith(mount.at + "/"):
                return mount.dir + at[len(mount.at) :]
        raise BadInput(f"{at!r} lies in no volume of the pod")

    def _clear(self) -> None:
        kept = {self._place(at) for at in self._there}
        for mount in self._mounts:
            _clear_but(mount.dir, kept)


def _clear_but(folder: str, kept: set[str]) -> None:
    with os.scandir(folder) as entries:
        for entry in list(entries):
            if entry.path in kept:
                continue
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
            elif any(path.startswith(entry.path + "/") for path in kept):
                _clear_but(entry.path, kept)
            else:
                remove_tree(entry.path)
