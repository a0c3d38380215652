"""What an operator decides about a fence, and whom pods may reach through it."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from fde_ray.model.base import Record
from fde_ray.model.errors import UserError, shortened
from fde_ray.model.kubernetes import DnsLabel, DnsSubdomain
from fde_ray.model.spelling import spelt

Port = Annotated[int, Field(ge=1, le=65535)]
NARROWEST = {4: 16, 6: 48}
"""Shortest prefix of a plane's network: a fence with a wider hole is none."""
_GRAMMAR = "write 10.0.0.7:8080, 10.0.0.0/28:8080, [fd00::7]:8080 or namespace/label=value:8080"


class AddressPeer(Record):
    """A plane at addresses that do not change."""

    network: str
    """As CIDR."""
    port: Port


class PodsPeer(Record):
    """A plane that runs as pods; its service's address is allowed by the pods behind it."""

    namespace: DnsLabel
    label: Annotated[str, spelt(r"[A-Za-z0-9][-A-Za-z0-9_./]{0,250}", "label of pods")]
    value: Annotated[str, spelt(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,62}", "value of a label")]
    port: Port
    """The one that the pods listen on, not the service's."""


Peer = AddressPeer | PodsPeer


class FenceSettings(Record):
    """One run namespace. Who drives runs lives in another: its account must not be a pod's."""

    namespace: DnsLabel = "fde-ray-runs"
    engine_namespace: DnsLabel = "fde-ray"
    engine_account: DnsLabel = "fde-ray-engine"
    runtime_class: DnsSubdomain | None = "gvisor"
    """Pods that name another are refused; None = those that name any."""
    run_plane: tuple[Peer, ...] = Field(min_length=1)
    """What solving pods reach."""
    ingest: tuple[Peer, ...] = ()
    """Where they send archives; empty = to the run-plane."""
    grade_plane: tuple[Peer, ...] = Field(min_length=1)
    """What extraction, scoring and exec pods reach."""
    pods: int = Field(default=100, ge=2, le=100_000)
    """Pods at once."""
    grading_pods: int | None = Field(default=None, ge=1)
    """How many of them solving pods never take; None = a quarter."""
    cpu: int | None = Field(default=None, ge=2)
    """Cores of all pods together; None = no limit but the number of pods."""
    memory_gib: int | None = Field(default=None, ge=2)
    pod_cpu: int = Field(default=16, ge=1)
    """The most that one pod may ask for."""
    pod_memory_gib: int = Field(default=64, ge=1)
    pod_disk_gib: int = Field(default=200, ge=1)
    images: tuple[Annotated[str, spelt(r"[!-~]{1,500}", "beginning of an image")], ...] = ()
    """Beginnings of the image references that pods may use; empty = any."""
    user_namespaces: bool = False
    """Whether pods must run in a user namespace of their own (`hostUsers: false`)."""

    @model_validator(mode="after")
    def _something_is_left(self) -> Self:
        if self.engine_namespace == self.namespace:
            raise ValueError("the engine's account needs a namespace without run pods")
        if self.namespace == "default" or self.namespace.startswith("kube-"):
            raise ValueError(f"{self.namespace} is no namespace for run pods: it holds others")
        if self.reserve >= self.pods:
            raise ValueError(f"grading takes {self.reserve} of {self.pods} pods: none can solve")
        return self

    @property
    def reserve(self) -> int:
        """Return how many pods are kept for grading."""
        return -(-self.pods // 4) if self.grading_pods is None else self.grading_pods

    def kept(self, total: int) -> int:
        """Return grading's part of what all pods may take, rounded up."""
        return -(-total * self.reserve // self.pods)


def parsed_peer(text: str) -> Peer:
    """Return the peer that an operator wrote; UserError with the grammar when it is none."""
    where, _, port = text.rpartition(":")
    shown = shortened(repr(text), 100)
    if not port.isascii() or not port.isdecimal() or not where:
        raise UserError(f"{shown} names no port; {_GRAMMAR}")
    try:
        if "=" in where:
            return _pods_peer(where, int(port))
        return AddressPeer(network=_network(where), port=int(port))
    except ValidationError as error:
        told = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UserError(f"{shown}: {told}; {_GRAMMAR}") from error


def _pods_peer(where: str, port: int) -> PodsPeer:
    namespace, _, selector = where.partition("/")
    label, _, value = selector.partition("=")
    return PodsPeer(namespace=namespace, label=label, value=value, port=port)


def _network(where: str) -> str:
    bare = where.removeprefix("[").removesuffix("]")
    try:
        network = ip_network(bare) if "/" in bare else ip_network(ip_address(bare))
    except ValueError as error:
        raise UserError(
            f"{shortened(repr(where), 100)} is no address: policies know no names, and pods "
            f"resolve none; {_GRAMMAR}"
        ) from error
    if network.prefixlen < NARROWEST[network.version]:
        raise UserError(f"{where} is too wide for a plane; give the planes' own addresses")
    return str(network)
