"""What the shim of a pod is told: one JSON literal in the environment of its container alone."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from .gate import GateSite, address_of
from .inputs import BadInput, Config

VARIABLE = "FDE_SHIM_CONFIG"
FORMAT = 1
TERMINATION_LOG = "/dev/termination-log"
LEAST_NONCE = 16


@dataclass(frozen=True)
class PodMount:
    """dir: where the shim has a volume that the agent has at `at`."""

    dir: str
    at: str
    read_only: bool = False


@dataclass(frozen=True)
class PodSite:
    health_port: int
    health_path: str
    """Known to shim and kubelet alone."""
    control_port: int
    relay_port: int
    mounts: tuple[PodMount, ...]
    gate: GateSite
    quiet_s: float = 3.0
    """No question of the kubelet for so long, which asks every second, means a dead container."""
    death_limit_s: float = 20.0
    """How long the proof of that death is waited for."""
    late_s: float = 60.0
    """How long after a program's time the runner of a box may need to end it and clear up."""
    termination_log: str = TERMINATION_LOG


def take_config(environ: MutableMapping[str, str]) -> tuple[Config, PodSite]:
    """Read the config and remove it from the environment; BadInput when it is not usable."""
    text = environ.pop(VARIABLE, "")
    try:
        value = json.loads(text)
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']!r} is not {FORMAT}")
        known = {key: value[key] for key in value if key not in ("format", "pod")}
        return Config(**known), _site(dict(value["pod"]))
    except KeyError as error:
        raise BadInput(f"{VARIABLE}: {error} is missing") from error
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        # A JSON error shows no text, which holds the secret.
        raise BadInput(f"{VARIABLE}: {error}") from error


def _site(value: dict[str, Any]) -> PodSite:
    gate = dict(value["gate"])
    site = PodSite(
        **{
            **value,
            "mounts": tuple(PodMount(**mount) for mount in value["mounts"]),
            "gate": GateSite(**{**gate, "forbidden": tuple(gate["forbidden"])}),
        }
    )
    _check(site)
    return site


def _check(site: PodSite) -> None:
    for port in (site.health_port, site.control_port, site.relay_port):
        if type(port) is not int or not 0 < port < 65536:
            raise ValueError(f"{port!r} is not a port")
    if not site.health_path.startswith("/") or len(site.health_path) <= LEAST_NONCE:
        raise ValueError(f"health_path needs a slash and {LEAST_NONCE} characters")
    for mount in site.mounts:
        if not mount.dir.startswith("/") or not mount.at.startswith("/"):
            raise ValueError("mounts have absolute paths")
    if not site.gate.forbidden or site.gate.rounds < 1:
        raise ValueError("a gate without forbidden addresses and rounds proves nothing")
    for address in site.gate.forbidden:
        address_of(address)
    times = (site.gate.over_s, site.gate.limit_s, site.gate.every_s, site.quiet_s, site.late_s)
    if min(times) <= 0:
        raise ValueError("times must be positive")
