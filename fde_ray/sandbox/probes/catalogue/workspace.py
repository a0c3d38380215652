"""Traps for the collector. What it makes of them is judged by what it collected."""

from __future__ import annotations

from typing import Any

from fde_ray.sandbox.probes.records import Attempt, Control, Group, Verdict


def _trap(
    name: str, what: str, call: str, expected: Verdict = Verdict.CONFINED, **options: Any
) -> Attempt:
    return Attempt(
        id=name, group=Group.WORKSPACE, what=what, call=f"traps.{call}", expected=expected,
        control=Control.COLLECTED, options=options, limit_s=options.pop("limit_s", 30.0),
    )  # fmt: skip


_COLLECTORS = [
    "/etc/passwd", "/var/fde/secret", "/proc/1/environ", "/proc/self/environ", "/box",
    "../../../../../../../etc/passwd", "../../../var/fde/secret", "/dev/zero",
]  # fmt: skip
ALONE = frozenset({"million_files", "sparse_terabyte"})
"""They spoil the whole collection, so each has a pod to itself."""
BUSY = frozenset({"million_files"})
"""They need most of a processor."""

ATTEMPTS = (
    _trap("links_out", "links to files of the collector", "links", targets=_COLLECTORS),
    _trap("folder_links", "links in place of folders", "folder_link",
          targets=["/var/fde", "/etc", "/box"]),
    _trap("hard_links", "one file under many names", "hard_links"),
    _trap("special_files", "pipes, sockets and devices", "special_files"),
    _trap("any_bytes", "names of any bytes", "odd_names"),
    _trap("path_escapes", "names that lead elsewhere", "escapes"),
    _trap("deep_folders", "folders deeper than a path may be long", "deep"),
    _trap("closed_folders", "locked folders and set-uid files", "closed"),
    _trap("swapped_folder", "a folder swapped for a link meanwhile", "swaps", targets=["/var/fde"]),
    _trap("sparse_terabyte", "a file of a terabyte that takes no room", "sparse",
          Verdict.CONTAINED, amount=1 << 40),
    _trap("million_files", "a million files", "many", Verdict.CONTAINED, amount=1_000_000,
          limit_s=150.0),
)  # fmt: skip
