"""Who reaches whom: nobody anybody, but each pod the planes of its role."""

from __future__ import annotations

from collections.abc import Sequence

from fde_ray.sandbox.kubernetes.contract import GRADING, LABEL_ROLE, SOLVE

from .objects import Object, built, explained
from .settings import AddressPeer, FenceSettings, Peer

DENY, TO_RUN_PLANE, TO_GRADE_PLANE = "fde-ray-deny", "fde-ray-solve", "fde-ray-grade"
POLICIES = (DENY, TO_RUN_PLANE, TO_GRADE_PLANE)
"""Names that stay, so that a newer fence replaces the older one rule by rule."""


def policies(settings: FenceSettings) -> list[Object]:
    """Return the three policies. The kubelet's own probes are outside of every policy."""
    return [
        _policy(
            DENY,
            settings,
            "no pod here reaches or is reached by anything, names included",
            {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
        ),
        _policy(
            TO_RUN_PLANE,
            settings,
            "solving pods reach the run-plane and ingest",
            _egress([SOLVE], [*settings.run_plane, *settings.ingest]),
        ),
        _policy(
            TO_GRADE_PLANE,
            settings,
            "grading pods reach the grade-plane",
            _egress(GRADING, settings.grade_plane),
        ),
    ]


def _policy(name: str, settings: FenceSettings, told: str, spec: Object) -> Object:
    return built(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        name,
        settings.namespace,
        annotations=explained(told),
        spec=spec,
    )


def _egress(roles: Sequence[str], peers: Sequence[Peer]) -> Object:
    of_role = {"key": LABEL_ROLE, "operator": "In", "values": list(roles)}
    return {
        "podSelector": {"matchExpressions": [of_role]},
        "policyTypes": ["Egress"],
        "egress": [_rule(peer) for peer in dict.fromkeys(peers)],
    }


def _rule(peer: Peer) -> Object:
    to: Object
    if isinstance(peer, AddressPeer):
        to = {"ipBlock": {"cidr": peer.network}}
    else:
        to = {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": peer.namespace}},
            "podSelector": {"matchLabels": {peer.label: peer.value}},
        }
    return {"to": [to], "ports": [{"protocol": "TCP", "port": peer.port}]}
