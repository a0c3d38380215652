"""Which pods a runtime needs for which attempts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from .building import Job, Recipe, Site, nonce_of
from .catalogue.resources import DISK, MEMORY, SHIM_MEMORY
from .catalogue.workspace import ALONE, BUSY
from .records import Attempt, Control, Group

Kind = Literal["fenced", "free", "loose", "plane"]
Targets = Mapping[str, tuple[str, int]]
LARGER = "-larger"
NETWORK, HOST, TRAPS, DEADLINE, PLANE = "network", "host", "traps", "deadline", "run"
_WIDTH = 8
_START_S = 60.0
_BUSY_CPU = 0.8
"""A million files take their time."""


class Errand(NamedTuple):
    """One pod: `attempts` are tried in it."""

    kind: Kind
    recipe: Recipe
    attempts: tuple[Attempt, ...]

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.recipe.name}"


def errands(attempts: Sequence[Attempt], targets: Targets, site: Site) -> list[Errand]:
    """Return every pod that is needed; attempts whose target is missing are in none."""
    there = [a for a in attempts if not a.target or a.target in targets]
    found = [
        *_shared("fenced", NETWORK, _in(there, Group.NETWORK), targets, site, width=_WIDTH),
        *_shared("fenced", HOST, [a for a in there if _is_of_host(a)], targets, site),
        *_shared(
            "free",
            NETWORK,
            [a for a in there if a.control in (Control.UNFENCED, Control.TWIN)],
            targets,
            site,
            width=_WIDTH,
        ),
        *_shared("loose", HOST, [a for a in there if a.control is Control.LOOSE], targets, site),
        *_traps(there, targets, site),
        *_shared("plane", PLANE, _in(there, Group.PLANE) if site.loot else (), targets, site),
        *_shared("fenced", DEADLINE, _in(there, Group.DEADLINE), targets, site, then="kill"),
    ]
    for attempt in _in(there, Group.RESOURCES):
        found += _resources(attempt, targets, site)
    return found


def _in(attempts: Iterable[Attempt], group: Group) -> list[Attempt]:
    return [attempt for attempt in attempts if attempt.group is group]


def _is_of_host(attempt: Attempt) -> bool:
    is_writing = attempt.group is Group.GRADER and attempt.control is not Control.COLLECTED
    return attempt.group in (Group.HOST, Group.HIDDEN) or is_writing


def _shared(
    kind: Kind,
    name: str,
    attempts: Sequence[Attempt],
    targets: Targets,
    site: Site,
    *,
    then: str = "end",
    width: int = 1,
    cpu: float = 0.2,
    traps: tuple[str, ...] = (),
) -> list[Errand]:
    if not attempts:
        return []
    jobs = tuple(job(each, kind, targets, site) for each in attempts)
    recipe = Recipe(
        name, jobs, then=then, width=width, cpu=cpu, traps=traps,
        limit_s=_START_S + sum(each.limit_s for each in attempts) / width,
    )  # fmt: skip
    return [Errand(kind, recipe, tuple(attempts))]


def _traps(attempts: Sequence[Attempt], targets: Targets, site: Site) -> list[Errand]:
    traps = [a for a in attempts if a.control is Control.COLLECTED]
    together = [trap for trap in traps if trap.id not in ALONE]
    lots = [(TRAPS, together), *((trap.id, [trap]) for trap in traps if trap.id in ALONE)]
    found = []
    for name, lot in lots:
        ids = tuple(trap.id for trap in lot)
        cpu = _BUSY_CPU if name in BUSY else 0.2
        found += _shared("fenced", name, lot, targets, site, then="collect", cpu=cpu, traps=ids)
    return found


def _resources(attempt: Attempt, targets: Targets, site: Site) -> list[Errand]:
    """Return its pod, and that of its control, which has twice as much of everything."""
    recipe = Recipe(
        attempt.id, (job(attempt, "fenced", targets, site),),
        limit_s=_START_S + attempt.limit_s,
        memory_bytes=MEMORY,
        disk_bytes=DISK,
    )  # fmt: skip
    found = [Errand("fenced", recipe, (attempt,))]
    if attempt.control is Control.LARGER:
        larger = recipe._replace(
            name=attempt.id + LARGER,
            memory_bytes=2 * (MEMORY + SHIM_MEMORY),
            disk_bytes=2 * recipe.disk_bytes,
        )
        found.append(Errand("fenced", larger, (attempt,)))
    return found


def job(attempt: Attempt, kind: Kind, targets: Targets, site: Site) -> Job:
    """Return what the harness is told of an attempt."""
    where = f"{kind} {site.profile.namespace}"
    told: Job = {
        "id": attempt.id,
        "call": attempt.call,
        "limit_s": attempt.limit_s,
        "nonce": nonce_of(site.tag, attempt.id, where),
    }
    if attempt.target:
        target = attempt.target
        if kind == "free" and attempt.control is Control.TWIN:
            target = target.replace("other_run", "twin")
        told["target"] = list(targets[target])
    if attempt.call.startswith("secrets."):
        told["own"] = nonce_of(site.tag, attempt.id, "own")
        told["words"] = [site.secret, site.sealed]
    if attempt.group is Group.PLANE and site.loot is not None:
        told |= _loot(site, site.loot)
    if attempt.call == "secrets.other_processes":
        told["words"] = ["standin", "fde-shim", "containerd", "kubelet"]
    return told | attempt.options


def _loot(site: Site, loot: Job) -> Job:
    given = ("subject", "other_subject", "token", "replayed", "expired")
    return {name: loot[name] for name in given} | {
        "plane": [site.address, loot["port"]],
        "own_secret": loot["secret"],
        "words": [loot["secret"], loot["sealed"]],
    }
