"""The configuration files of a lab, as text. Pure; JSON where a program also reads it as YAML."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from .layout import NAME, Layout, image
from .machine import CNI_PLUGINS
from .network import Network

NODE = "lab"
DNS_DOMAIN = "cluster.local"
POD_PIDS_LIMIT = 512
SIMULATED_LABEL = "fde-ray.lab/simulated"


def files(layout: Layout, network: Network) -> dict[str, str]:
    """Return every configuration file, by its name below the lab's home."""
    return {
        "containerd.toml": containerd(layout),
        "runsc.toml": gvisor(),
        "cni/10-lab.conflist": pod_network(layout, network),
        "cni-v4/10-lab-v4.conflist": pod_network(layout, network, v6=False),
        "kubelet.json": kubelet(layout, network),
        "Corefile": dns(layout, network),
    }


def containerd(layout: Layout) -> str:
    """`restrict_oom_score_adj`: a machine may itself lack the right to spare a process.

    Pods of the class `runc` have no IPv6: policies here are of IPv4, and a pod would reach its node
    by an address of the link that nobody gave it. Pods without a class have it: they are controls.
    """
    runtimes = '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes'
    return f"""version = 3
root = "{layout.container_root}"
state = "{layout.home}/containerd"
[grpc]
  address = "{layout.containerd_socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{layout.home}/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{image("pause")}"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{CNI_PLUGINS}"]
    conf_dir = "{layout.home}/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "plain"
  {runtimes}.plain]
    runtime_type = "io.containerd.runc.v2"
  {runtimes}.runc]
    runtime_type = "io.containerd.runc.v2"
    cni_conf_dir = "{layout.home}/cni-v4"
  {runtimes}.runsc]
    runtime_type = "io.containerd.runsc.v1"
    {runtimes}.runsc.options]
      TypeUrl = "io.containerd.runsc.v1.options"
      ConfigPath = "{layout.home}/runsc.toml"
"""


def gvisor() -> str:
    """`systrap` works on any machine; `kvm` may fail without a word where /dev/kvm is nested."""
    return '[runsc_config]\n  platform = "systrap"\n  network = "sandbox"\n'


def pod_network(layout: Layout, network: Network, *, v6: bool = True) -> str:
    """`ptp` routes every packet through the node, so that policies see all of them.

    v6: whether a pod's own kernel part speaks IPv6 on its link.
    """
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": str(network.pods)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": f"{layout.home}/cni-addresses",
    }
    plugins: list[dict[str, Any]] = [
        {"type": "ptp", "ipMasq": False, "mtu": 1500, "ipam": addresses},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    if not v6:
        plugins.append({"type": "tuning", "sysctl": {"net.ipv6.conf.all.disable_ipv6": "1"}})
    return _json({"cniVersion": "1.0.0", "name": NAME, "plugins": plugins})


def kubelet(layout: Layout, network: Network) -> str:
    """Disk thresholds are low and images are never collected: none can be fetched again."""
    return _json(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": str(network.node),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{layout.pki}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{layout.pki}/kubelet.crt",
            "tlsPrivateKeyFile": f"{layout.pki}/kubelet.key",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{NAME}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
            "clusterDomain": DNS_DOMAIN,
            "clusterDNS": [str(network.dns_service)],
            "resolvConf": "/dev/null",
            "podLogsDir": f"{layout.home}/pod-logs",
            "volumePluginDir": f"{layout.home}/volume-plugins",
            "makeIPTablesUtilChains": False,
            "healthzPort": 0,
            "maxPods": 110,
            "podPidsLimit": POD_PIDS_LIMIT,
            "nodeStatusUpdateFrequency": "5s",
            "volumeStatsAggPeriod": "10s",
            "serializeImagePulls": False,
            "evictionHard": {
                "memory.available": "200Mi",
                "nodefs.available": "500Mi",
                "imagefs.available": "500Mi",
            },
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
        }
    )


def dns(layout: Layout, network: Network) -> str:
    """Only names of the cluster: nothing is forwarded, a name from outside is refused."""
    return f"""{DNS_DOMAIN} in-addr.arpa:53 {{
    bind {network.node}
    errors
    kubernetes {DNS_DOMAIN} in-addr.arpa {{
        kubeconfig {layout.kubeconfig} lab
        ttl 5
    }}
}}
"""


def kubeconfig(user: str, network: Network, pki: Path) -> str:
    """Return a kubeconfig that holds its certificates, so that it can be copied."""

    def encoded(name: str) -> str:
        return base64.b64encode((pki / name).read_bytes()).decode()

    server = {
        "server": f"https://{network.node}:6443",
        "certificate-authority-data": encoded("ca.crt"),
    }
    secrets = {
        "client-certificate-data": encoded(f"{user}.crt"),
        "client-key-data": encoded(f"{user}.key"),
    }
    return _json(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": server}],
            "users": [{"name": user, "user": secrets}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
            "current-context": "lab",
        }
    )


def _json(document: Any) -> str:
    return json.dumps(document, indent=2) + "\n"
