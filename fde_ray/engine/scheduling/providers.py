"""How many runs each model's provider bears, measured by the time that it keeps them waiting."""

from __future__ import annotations

from collections.abc import Mapping

from fde_ray.model.scheduling import SchedulingProfile
from fde_ray.store.runs.outlook import Measured

CUT = 0.75
GROWTH = 0.1


def measured_caps(
    caps: Mapping[str, int],
    measured: Mapping[str, Measured],
    live: Mapping[str, int],
    settings: SchedulingProfile,
) -> dict[str, int]:
    """Return the most runs of each model from here on; absent = no limit was found.

    A model whose runs wait too long loses a quarter of them; one whose runs do not grows by a
    tenth, and is without a cap again when that is twice what is at work.
    """
    found = dict(caps)
    for model in {*caps, *measured}:
        seen, running = measured.get(model), live.get(model, 0)
        cap = _cap(caps.get(model), _share(seen), running, settings.provider_pause_share)
        if cap is None:
            found.pop(model, None)
        else:
            found[model] = cap
    return found


def _share(seen: Measured | None) -> float:
    return 0.0 if seen is None or seen.wall_s <= 0 else seen.paused_s / seen.wall_s


def _cap(cap: int | None, share: float, running: int, most: float) -> int | None:
    if share > most:
        return max(1, int(min(running, cap or running) * CUT))
    if cap is None or cap >= max(2, 2 * running):
        return None
    return cap + max(1, int(cap * GROWTH))
