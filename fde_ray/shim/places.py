"""Inside paths as host paths, for the runtime that has no file system of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping


def localised(text: str, paths: Mapping[str, str]) -> str:
    """Return `text` with every path of `paths`, and what lies below it, where it really is.

    paths: inside path -> real path. A path counts from its first slash on: `/workspace` is neither
    in `/old/workspace` nor in `/workspace2`.
    """
    if not paths:
        return text
    longest_first = sorted(paths, key=len, reverse=True)
    names = "|".join(re.escape(path) for path in longest_first)
    # One pass, since a real path may hold the name of an inside one.
    return re.sub(
        rf"(?<![\w./-])(?:{names})(?![\w-]|\.\w)", lambda found: paths[found.group()], text
    )
