"""Which programs make up the cluster, and with which arguments. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

from .certificates import SERVICE_ACCOUNTS
from .layout import SOURCES, Layout
from .network import Network
from .rendering import NODE, SIMULATED_LABEL

_ETCD = "http://127.0.0.1:2379"


class Daemon(NamedTuple):
    name: str
    argv: tuple[str, ...]
    needs: Literal["nothing", "api", "node"] = "api"
    """What has to be there before it starts: else it gives up at once."""


def daemons(layout: Layout, network: Network) -> tuple[Daemon, ...]:
    """Return them in the order in which they start."""
    kube = str(layout.bin / "kube")
    return (
        Daemon("containerd", _containerd(layout), "nothing"),
        Daemon("etcd", (kube, "etcd", *_etcd(layout)), "nothing"),
        Daemon("apiserver", (kube, "apiserver", *_apiserver(layout, network)), "nothing"),
        Daemon("controller-manager", (kube, "controller-manager", *_controllers(layout, network))),
        Daemon("scheduler", (kube, "scheduler", *_scheduler(layout))),
        Daemon("kubelet", (kube, "kubelet", *_kubelet(layout, network))),
        Daemon("proxy", (kube, "proxy", *_proxy(layout, network))),
        Daemon("coredns", _coredns(layout)),
        Daemon("kwok", _kwok(layout, network)),
        Daemon("kube-router", _kube_router(layout), "node"),
    )


def _containerd(layout: Layout) -> tuple[str, ...]:
    return (f"{layout.bin}/containerd", "--config", f"{layout.home}/containerd.toml")


def _etcd(layout: Layout) -> tuple[str, ...]:
    """Nothing it holds outlives the lab, so it need not wait for the disk."""
    return (
        f"--data-dir={layout.home}/etcd",
        f"--listen-client-urls={_ETCD}",
        f"--advertise-client-urls={_ETCD}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",
        "--quota-backend-bytes=4294967296",
        "--log-level=warn",
    )


def _apiserver(layout: Layout, network: Network) -> tuple[str, ...]:
    pki = layout.pki
    return (
        f"--etcd-servers={_ETCD}",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--kubelet-client-certificate={pki}/apiserver-client.crt",
        f"--kubelet-client-key={pki}/apiserver-client.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-key-file={pki}/{SERVICE_ACCOUNTS}.key",
        f"--service-account-signing-key-file={pki}/{SERVICE_ACCOUNTS}.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-cluster-ip-range={network.services}",
        f"--advertise-address={network.node}",
        "--bind-address=0.0.0.0",
        "--secure-port=6443",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
    )


def _controllers(layout: Layout, network: Network) -> tuple[str, ...]:
    return (
        f"--kubeconfig={layout.kubeconfig_of('controller-manager')}",
        f"--service-account-private-key-file={layout.pki}/{SERVICE_ACCOUNTS}.key",
        f"--root-ca-file={layout.pki}/ca.crt",
        "--use-service-account-credentials",
        "--leader-elect=false",
        f"--cluster-cidr={network.pods}",
        "--allocate-node-cidrs=false",
        "--bind-address=127.0.0.1",
        "--node-monitor-grace-period=20s",
        f"--flex-volume-plugin-dir={layout.home}/volume-plugins",
    )


def _scheduler(layout: Layout) -> tuple[str, ...]:
    return (
        f"--kubeconfig={layout.kubeconfig_of('scheduler')}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
    )


def _kubelet(layout: Layout, network: Network) -> tuple[str, ...]:
    return (
        f"--kubeconfig={layout.kubeconfig_of('kubelet')}",
        f"--config={layout.home}/kubelet.json",
        f"--config-dir={layout.kubelet_settings}",
        f"--root-dir={layout.home}/kubelet",
        f"--cert-dir={layout.pki}",
        f"--hostname-override={NODE}",
        f"--node-ip={network.node}",
    )


def _proxy(layout: Layout, network: Network) -> tuple[str, ...]:
    """Its connection limit is the whole machine's and stays as it is."""
    return (
        f"--kubeconfig={layout.kubeconfig_of('proxy')}",
        f"--hostname-override={NODE}",
        "--proxy-mode=nftables",
        f"--cluster-cidr={network.pods}",
        "--nodeport-addresses=primary",
        "--conntrack-max-per-core=0",
    )


def _kube_router(layout: Layout) -> tuple[str, ...]:
    """Network policies only: routes and services are done by others."""
    return (
        f"{layout.bin}/kube-router",
        f"--kubeconfig={layout.kubeconfig}",
        f"--hostname-override={NODE}",
        "--run-firewall=true",
        "--run-router=false",
        "--run-service-proxy=false",
        "--metrics-port=0",
        "--health-port=0",
    )


def _coredns(layout: Layout) -> tuple[str, ...]:
    return (f"{layout.bin}/coredns", "-conf", f"{layout.home}/Corefile")


def _kwok(layout: Layout, network: Network) -> tuple[str, ...]:
    return (
        f"{layout.bin}/kwok",
        f"--kubeconfig={layout.kubeconfig}",
        f"--config={SOURCES}/stages.yaml",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-label-selector={SIMULATED_LABEL}=true",
        "--node-lease-duration-seconds=40",
        f"--node-ip={network.node}",
        f"--cidr={network.simulated_pods}",
        "--server-address=127.0.0.1:10247",
    )
