"""What is built from Go modules, and the key under which a finished build is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .layout import MODULES

KUBERNETES = "v1.34.4"
_VERSION_PACKAGE = "k8s.io/component-base/version"
_COMMON = ("-trimpath", "-buildvcs=false")
_PATCHES = "_patches"


class Module(NamedTuple):
    """One folder of `modules/`. binaries: name → package that it is built from."""

    name: str
    binaries: dict[str, str]
    tags: tuple[str, ...] = ()
    linker: tuple[str, ...] = ()
    cgo: bool = False

    @property
    def folder(self) -> Path:
        return MODULES / self.name

    @property
    def patches(self) -> Path:
        """Files laid over the vendored packages; the folder exists only where one is needed."""
        return self.folder / _PATCHES

    @property
    def flags(self) -> tuple[str, ...]:
        tags = (f"-tags={','.join(self.tags)}",) if self.tags else ()
        return (*_COMMON, *tags, " ".join(("-ldflags=-s -w", *self.linker)))


def _kubernetes_version() -> Iterator[str]:
    """Clients mistrust a server that does not know its version."""
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    for name, value in (("Version", KUBERNETES), ("Major", major), ("Minor", minor)):
        yield f"-X {_VERSION_PACKAGE}.git{name}={value}"


_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
TABLE = (
    Module("pause", {"pause": "."}),
    Module("kube", {"kube": "."}, linker=tuple(_kubernetes_version())),
    Module(
        "containerd",
        {n: f"{_CONTAINERD}/{n}" for n in ("containerd", "ctr", "containerd-shim-runc-v2")},
        tags=("no_btrfs", "no_devmapper", "no_zfs"),
    ),
    Module("runc", {"runc": "github.com/opencontainers/runc"}, tags=("seccomp",), cgo=True),
    Module(
        "gvisor",
        {"runsc": "gvisor.dev/gvisor/runsc", "containerd-shim-runsc-v1": "gvisor.dev/gvisor/shim"},
    ),
    Module(
        "kube-router", {"kube-router": "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"}
    ),
    Module("coredns", {"coredns": "github.com/coredns/coredns"}),
    Module("kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
)


def build_key(module: Module) -> str:
    """Return a name for everything that decides the bytes, but for Go's own version."""
    found = hashlib.sha256()
    for part in (*module.flags, f"cgo={module.cgo}", *map("=".join, module.binaries.items())):
        found.update(part.encode() + b"\0")
    for path in sorted(p for p in module.folder.rglob("*") if p.is_file()):
        relative = path.relative_to(module.folder).as_posix().encode()
        found.update(b"\0" + relative + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:20]


def build_folder(builds: Path, module: Module) -> Path:
    return builds / f"{module.name}-{build_key(module)}"


def missing_modules(builds: Path) -> list[Module]:
    return [module for module in TABLE if not build_folder(builds, module).is_dir()]
