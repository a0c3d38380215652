"""What the objects of a run are, by their keys alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, cast

from fde_ray.model.boxes import BOX_ROLES, BoxRole

_NUMBER = r"(?:0|[1-9]\d{0,8})"
_ATTEMPT = re.compile(rf"attempts/({_NUMBER})/(.+)")
_TRY = re.compile(rf"grades/([0-9a-f]{{4,64}})/({_NUMBER})\.({_NUMBER})/(.+)")
_BOX = re.compile(rf"grades/([0-9a-f]{{4,64}})/({'|'.join(BOX_ROLES)})\.({_NUMBER})/(.+)")
_RESULT = re.compile(r"grades/([0-9a-f]{4,64})/result\.json")
_ROUTE = re.compile(r"grades/([0-9a-f]{4,64})/extraction/(-?\d{1,4})/([0-9a-f]{64})/route\.json")
_COVERAGE = re.compile(r"grades/([0-9a-f]{4,64})/judging/panel/([0-9a-f]{64})\.json")


class Names(NamedTuple):
    attempts: dict[int, list[str]]
    tries: dict[tuple[str, int, int], list[str]]
    boxes: dict[tuple[str, BoxRole, int], list[str]]
    results: dict[str, str]
    routes: dict[tuple[str, int], list[tuple[str, str]]]
    coverages: dict[str, list[tuple[str, str]]]


def named(prefix: str, keys: Sequence[str]) -> Names:
    """Sort the keys of a run by what they are; others are left out."""
    found = Names({}, {}, {}, {}, {}, {})
    for key in keys:
        name = key.removeprefix(prefix)
        if match := _ATTEMPT.fullmatch(name):
            found.attempts.setdefault(int(match[1]), []).append(match[2])
        elif match := _TRY.fullmatch(name):
            place = match[1], int(match[2]), int(match[3])
            found.tries.setdefault(place, []).append(match[4])
        elif match := _BOX.fullmatch(name):
            box = match[1], cast("BoxRole", match[2]), int(match[3])
            found.boxes.setdefault(box, []).append(match[4])
        elif match := _RESULT.fullmatch(name):
            found.results[match[1]] = key
        elif match := _ROUTE.fullmatch(name):
            found.routes.setdefault((match[1], int(match[2])), []).append((key, match[3]))
        elif match := _COVERAGE.fullmatch(name):
            found.coverages.setdefault(match[1], []).append((key, match[2]))
    return found
