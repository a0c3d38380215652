"""How many bytes objects take."""

from __future__ import annotations

import sys


def deep_size(thing: object) -> int:
    """Return the bytes of a thing and all that it holds; what is held twice counts once."""
    seen: set[int] = set()
    waiting, total = [thing], 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        if isinstance(one, dict):
            waiting += (*one.keys(), *one.values())
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
        elif hasattr(one, "__dict__"):
            waiting.append(vars(one))
    return total
