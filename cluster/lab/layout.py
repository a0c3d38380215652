"""Where the lab keeps things: what is worth keeping in the user's cache, all else in one folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).parent
MODULES = SOURCES / "modules"
NAME = "fde-ray-lab"
"""Of the control group, the machine's link and everything else that has a name on the machine."""


class Layout(NamedTuple):
    """cache: survives `lab-down` (binaries, images); home: gone with it."""

    cache: Path
    home: Path

    @property
    def builds(self) -> Path:
        return self.cache / "builds"

    @property
    def images(self) -> Path:
        return self.cache / "images"

    @property
    def container_root(self) -> Path:
        """Of containerd: unpacked images, so that they are imported once."""
        return self.cache / "containerd"

    @property
    def bin(self) -> Path:
        """Links to the binaries this cluster runs; the first folder of its PATH."""
        return self.home / "bin"

    @property
    def pki(self) -> Path:
        return self.home / "pki"

    @property
    def logs(self) -> Path:
        return self.home / "logs"

    @property
    def pids(self) -> Path:
        return self.home / "pids"

    @property
    def kubelet_settings(self) -> Path:
        """`*.conf` in it go over those of the kubelet's own file, from its next start on."""
        return self.home / "kubelet.d"

    @property
    def containerd_socket(self) -> Path:
        return self.home / "containerd.sock"

    @property
    def kubeconfig(self) -> Path:
        return self.kubeconfig_of("admin")

    def kubeconfig_of(self, user: str) -> Path:
        return self.home / f"{user}.kubeconfig"


def find_layout(environ: Mapping[str, str]) -> Layout:
    """Return the folders; FDE_RAY_LAB_HOME moves the second one (a short path on a real disk)."""
    cache = Path(environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME', '')}/.cache")
    return Layout(
        cache / "fde-ray" / "lab", Path(environ.get("FDE_RAY_LAB_HOME") or f"/var/lib/{NAME}")
    )


def image(name: str) -> str:
    """Return the reference by which pods name an image of the lab (`imagePullPolicy: Never`)."""
    return f"localhost/{NAME}/{name}:1"
