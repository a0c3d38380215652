"""What one process knows of the pods that it watches, without asking for any of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .ends import is_calm
from .views import PodView

MOST_GONE = 20_000
"""How many pods are remembered that are no more."""


class Gone(NamedTuple):
    """The last that was seen of a pod that is no more."""

    view: PodView
    at: float


class PodCache:
    """By name, which follows from the session; a name may pass from one UID to another."""

    def __init__(self) -> None:
        self._pods: dict[str, PodView] = {}
        self._by_subject: dict[str, str] = {}
        self._gone: OrderedDict[str, Gone] = OrderedDict()
        self._shards: frozenset[int] = frozenset()
        self.calm: set[str] = set()
        """UIDs of the pods that need no look: thousands are asked for every few seconds."""

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[PodView]:
        return iter(tuple(self._pods.values()))

    def covers(self, shard: int) -> bool:
        """Whether a pod of this shard that is not here is not there."""
        return shard in self._shards

    def named(self, name: str) -> PodView | None:
        return self._pods.get(name)

    def of_subject(self, subject: str) -> PodView | None:
        return self._pods.get(self._by_subject.get(subject, ""))

    def gone(self, uid: str) -> Gone | None:
        return self._gone.get(uid)

    def listed(
        self, views: Iterable[PodView], shards: frozenset[int], version: str, now: float
    ) -> None:
        """Take in all pods of these shards, as a list of this version has them.

        What was made after the list was, and is known already, stays.
        """
        found = {view.name: view for view in views}
        for view in self:
            if view.shard not in shards:
                self._forget(view)
            elif view.name not in found and not _is_older(version, view.version):
                self._drop(view, now)
        for view in found.values():
            self.seen(view, now)
        self._shards = shards

    def narrowed(self, shards: frozenset[int]) -> None:
        """Forget what the next list will not cover."""
        self._shards &= shards

    def seen(self, view: PodView, now: float) -> bool:
        """Take in a pod; False = nothing new is in it."""
        known = self._pods.get(view.name)
        if known is not None and known.uid == view.uid:
            if _is_older(view.version, known.version):
                return False
        elif (gone := self._gone.get(view.uid)) is not None:
            if view.version != gone.view.version and _is_older(view.version, gone.view.version):
                return False
            del self._gone[view.uid]  # it was only missing from a list
        if known is not None and known.uid != view.uid:
            self._drop(known, now)
        self._pods[view.name] = view
        (self.calm.add if is_calm(view) else self.calm.discard)(view.uid)
        if view.subject:
            self._by_subject[view.subject] = view.name
        return True

    def dropped(self, view: PodView, now: float) -> None:
        """Take in that a pod is no more; `view` is how it was at the end."""
        known = self._pods.get(view.name)
        if known is None or known.uid == view.uid:
            self._drop(view, now)

    def _drop(self, view: PodView, now: float) -> None:
        self._forget(view)
        self._gone[view.uid] = Gone(view, now)
        while len(self._gone) > MOST_GONE:
            self._gone.popitem(last=False)

    def _forget(self, view: PodView) -> None:
        known = self._pods.pop(view.name, None)
        if known is not None:
            self.calm.discard(known.uid)
        if self._by_subject.get(view.subject) == view.name:
            del self._by_subject[view.subject]


def _is_older(version: str, known: str) -> bool:
    """Whether this was so before what is known, or at the same time. Versions that are no numbers
    tell nothing."""
    if version.isdigit() and known.isdigit():
        return int(version) <= int(known)
    return version == known
