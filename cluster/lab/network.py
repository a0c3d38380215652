"""The addresses of a lab: one private /16, cut into parts, that nothing on the machine uses."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network
from typing import NamedTuple

from fde_ray.model.errors import UserError

CANDIDATES = tuple(IPv4Network(f"10.{n}.0.0/16") for n in range(250, 240, -1))


class Network(NamedTuple):
    """block: the whole; every other address follows from it."""

    block: IPv4Network

    @property
    def node(self) -> IPv4Address:
        """Of the node and its API server, as the machine and the pods see it."""
        return self.block[1]

    @property
    def machine(self) -> IPv4Address:
        """Of the machine, as pods see it: a gateway that runs on the machine listens here."""
        return self.block[2]

    @property
    def simulated_pods(self) -> IPv4Network:
        return self._part(32, 19)

    @property
    def services(self) -> IPv4Network:
        return self._part(64, 18)

    @property
    def pods(self) -> IPv4Network:
        return self._part(128, 17)

    @property
    def api_service(self) -> IPv4Address:
        return self.services[1]

    @property
    def dns_service(self) -> IPv4Address:
        return self.services[10]

    def _part(self, third: int, prefix: int) -> IPv4Network:
        return IPv4Network((int(self.block.network_address) + third * 256, prefix))


def chosen_network(used: Iterable[IPv4Network]) -> Network:
    """Return the first candidate that overlaps none of the machine's networks."""
    taken = [network for network in used if network.prefixlen > 0]
    for block in CANDIDATES:
        if not any(block.overlaps(network) for network in taken):
            return Network(block)
    raise UserError(
        f"no address block is left for the lab: {CANDIDATES[-1]} to {CANDIDATES[0]} are all in "
        "use; look at `ip route show table all` and free one of them"
    )


def parsed_routes(document: str) -> list[IPv4Network]:
    """Return the destinations of `ip -json route show table all`, without default routes."""
    found = []
    for route in json.loads(document or "[]"):
        destination = route.get("dst", "default")
        if destination != "default":
            found.append(IPv4Network(destination, strict=False))
    return found


def used_networks() -> list[IPv4Network]:
    argv = ["ip", "-4", "-json", "route", "show", "table", "all"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return parsed_routes(done.stdout)
