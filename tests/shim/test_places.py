"""Inside paths become real ones, and nothing else does."""

from __future__ import annotations

import pytest

from fde_ray.shim.places import localised

PATHS = {"/out": "/home/x/out/w0", "/case": "/home/x/out/m1", "/case/data": "/home/y"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/out", "/home/x/out/w0"),
        ("cp /case/a /out/b", "cp /home/x/out/m1/a /home/x/out/w0/b"),
        ("ls '/case/data/x'", "ls '/home/y/x'"),
        ("--dir=/out", "--dir=/home/x/out/w0"),
        ("see /out.", "see /home/x/out/w0."),
        ("/old/out ./out x/out /out2 /out-b /out.d", "/old/out ./out x/out /out2 /out-b /out.d"),
        ("", ""),
    ],
)
def test_whole_paths_are_replaced_once(text: str, found: str) -> None:
    assert localised(text, PATHS) == found


def test_no_paths_leave_the_text_alone() -> None:
    assert localised("/out", {}) == "/out"
