"""Ways out by the network. The control of each is the same attempt from a pod without a fence, and
where even that has no way (raw sockets, IPv6), from one with privileges besides."""

from __future__ import annotations

from typing import Any

from fde_ray.sandbox.probes.records import Attempt, Control, Group, Verdict


def _attempt(
    name: str,
    what: str,
    call: str,
    target: str,
    control: Control = Control.UNFENCED,
    expected: Verdict = Verdict.BLOCKED,
    watched: Any = "",
    **options: Any,
) -> Attempt:
    return Attempt(
        id=name, group=Group.NETWORK, what=what, call=f"network.{call}", target=target,
        control=control, expected=expected, watched=watched, options=options,
    )  # fmt: skip


ATTEMPTS = (
    _attempt("api_service", "API server by its service address", "tcp", "api_service"),
    _attempt("api_node", "API server by its node's address", "tcp", "api_node"),
    _attempt("metadata", "metadata address of a cloud", "tcp", "metadata", watched="packet"),
    _attempt("kubelet", "kubelet of the own node", "tcp", "kubelet"),
    _attempt("other_kubelet", "kubelet of a second node", "tcp", "node2_kubelet", watched="packet"),
    _attempt(
        "read_only_kubelet", "kubelet's port without a password", "tcp", "node2_read_only",
        watched="packet",
    ),
    _attempt("node_port", "a service by the node's port", "tcp", "node_port"),
    _attempt("service_address", "a service by its own address", "tcp", "service"),
    _attempt("other_node", "secure shell of a second node", "tcp", "node2_ssh", watched="packet"),
    _attempt("other_run", "a pod of another run", "tcp", "other_run", Control.TWIN),
    _attempt("other_run_udp", "a pod of another run by UDP", "udp", "other_run_udp", Control.TWIN),
    _attempt("other_namespace", "a pod of another namespace", "tcp", "other_namespace"),
    _attempt("plane_host", "another port of the gateway's host", "tcp", "gateway_other_port"),
    _attempt("dns_udp", "name server of the cluster by UDP", "domain_name", "dns"),
    _attempt("dns_tcp", "name server of the cluster by TCP", "domain_name", "dns", tcp=True),
    _attempt("dns_pod", "name server by the address of its pod", "domain_name", "dns_backend"),
    _attempt("dns_resolver", "the pod's own resolver", "resolver", ""),
    _attempt(
        "dns_tunnel", "a tunnel in questions to a name server outside", "tunnel", "outside_dns",
        watched="packet",
    ),
    _attempt("outside_tcp", "an address outside by TCP", "tcp", "outside_tcp", watched="packet"),
    _attempt("outside_udp", "an address outside by UDP", "udp", "outside_udp", watched="packet"),
    _attempt(
        "outside_source_port", "an address outside, from the port of an answer", "tcp",
        "outside_tcp", watched="packet", source_port=5353,
    ),
    _attempt("outside_ping", "an address outside by echo requests", "ping", "outside_ip",
             watched="packet"),
    _attempt("ipv6_outside", "an address outside by IPv6", "udp_v6", "outside_v6", Control.LOOSE,
             watched="packet"),
    _attempt("ipv6_link", "the node by IPv6 on the link", "link_local", "link_v6",
             Control.LOOSE),
    _attempt(
        "raw_socket", "echo requests by a raw socket", "raw", "outside_ip", Control.LOOSE,
        Verdict.CONFINED, "packet",
    ),
    _attempt(
        "raw_socket_as_root", "the same as root of a user namespace", "raw_in_user_namespace",
        "outside_ip", Control.LOOSE, Verdict.CONFINED, "packet",
    ),
    _attempt(
        "packet_socket", "a frame put on the link itself", "packet", "outside_udp", Control.LOOSE,
        Verdict.CONFINED, "packet",
    ),
    _attempt(
        "spoofed_sender", "a packet under another pod's address", "spoofed", "outside_udp",
        Control.LOOSE, Verdict.CONFINED, "packet",
    ),
)  # fmt: skip
