"""How runs go into pods: the `sandbox.kubernetes` block of a profile."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from .base import Record
from .spelling import spelt
from .units import Duration, Size, parse_duration, parse_size

_DIGEST = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9]{1,3}(\.[0-9]{1,3}){3}):[0-9]{1,5}")


def _ip_and_port(value: str) -> str:
    if not _ADDRESS.fullmatch(value) or not 0 < int(value.rpartition(":")[2]) < 65536:
        raise ValueError("write ip:port, with an IPv6 address in brackets")
    return value


IpAndPort = Annotated[str, AfterValidator(_ip_and_port)]
_PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DnsLabel = Annotated[
    str,
    Field(max_length=63),
    spelt(
        _PART,
        "such name: write small letters, digits and '-', with a letter or digit first and last",
    ),
]
DnsSubdomain = Annotated[
    str,
    Field(max_length=253),
    spelt(
        rf"{_PART}(\.{_PART})*",
        "such name: write small letters, digits, '-' and '.', with a letter or digit at each end "
        "and beside each '.'",
    ),
]
"""As Kubernetes takes names of most objects; those of namespaces are labels."""


class Toleration(Record):
    """As in a pod: which taints of nodes do not keep it away."""

    key: str | None = None
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class KubernetesProfile(Record):
    namespace: DnsLabel = "fde-ray-runs"
    """Holds nothing but run pods; `fde-ray cluster render` prints what fences it."""
    image: str = Field(min_length=1)
    """name@sha256:…; a tag only with `pull: Never`."""
    pull: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    runtime_class: DnsSubdomain | None = "gvisor"
    """Where a cluster has no such class, no pod is taken; None = the cluster's default runtime."""
    user_namespaces: bool = False
    """`hostUsers: false`, where nodes and runtime can."""
    kubeconfig: str | None = None
    """None = $KUBECONFIG, else the service account of our own pod, else ~/.kube/config."""
    context: str | None = None
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    queue: DnsLabel | None = None
    """The Kueue LocalQueue that admits run pods; None = Kueue has no part in it."""
    schedule_within: Duration = parse_duration("15m")
    """How long a pod may wait for a node; then its attempt is lost as `unschedulable`."""
    start_within: Duration = parse_duration("10m")
    """From its node to its first container, the image's pull in it."""
    forbidden: tuple[IpAndPort, ...] = ()
    """What no agent may reach, beside the API server and the metadata address: a shim starts none
    before all of these refuse. A plane's own address is left out in its own pods."""
    shim_cpu: float = Field(default=0.25, gt=0, le=16)
    shim_memory: Size = parse_size("256MiB")
    scoring: Literal["pods", "local", "refuse"] = "pods"
    """Where evaluators and the checker run: pods = in one pod of their own for each grade; local =
    in a sandbox of the machine that asks for them, not in a pod."""
    scoring_cpu: float = Field(default=1.0, gt=0, le=64)
    """Of a scoring pod's programs; their memory is what the case's evaluator may take."""
    scoring_idle: Duration = parse_duration("10m")
    """A scoring pod that nobody asks for so long is ended; the next program has a new one."""

    @model_validator(mode="after")
    def _image_is_fixed(self) -> Self:
        if self.pull != "Never" and not _DIGEST.fullmatch(self.image):
            raise ValueError(
                "name the image by digest (name@sha256:…); a tag may be moved, and is taken only "
                "with `pull: Never`"
            )
        return self
