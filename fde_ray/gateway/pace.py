"""How fast a body has to come. Pure."""

from __future__ import annotations

from typing import NamedTuple


class Pace(NamedTuple):
    """Never a longer silence than `silence_s`, and no fewer bytes a second than `least_per_s`, the
    first `silence_s` aside."""

    silence_s: float = 30.0
    least_per_s: float = 64 * 1024
    """The largest part (16 MiB) has 286 s, about what an upload has in all."""


class Progress(NamedTuple):
    """Of a body that is awaited, at the last look at it; time in which nobody reads is left out."""

    size: int = 0
    waited_s: float = 0.0
    silent_s: float = 0.0

    def later(self, size: int, passed_s: float, *, is_read: bool) -> Progress:
        """Return the progress `passed_s` after this one, with `size` bytes of the body here."""
        if not is_read:
            return self._replace(size=size, silent_s=0.0)
        silent_s = self.silent_s + passed_s if size == self.size else 0.0
        return Progress(size, self.waited_s + passed_s, silent_s)

    def is_too_slow(self, pace: Pace) -> bool:
        due_s = pace.silence_s + self.size / pace.least_per_s
        return self.silent_s >= pace.silence_s or self.waited_s >= due_s
