"""Installs the Debian packages that the lab needs and the machine lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence

from fde_ray.model.errors import UserError, shortened

from .building import Say

_APT = ("apt-get", "install", "-y", "-qq", "--no-install-recommends")
_PATIENCE = ("-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3")


def provide(lacking: Callable[[], Sequence[str]], say: Say) -> None:
    """Install Debian packages until nothing is lacking; raise with the command where that fails.

    FDE_RAY_SKIP_APT=1 forbids it, as in the set-up.
    """
    packages = lacking()
    if not packages:
        return
    said = ""
    if (as_root := _way_to_root()) is not None:
        say(f"installing {' '.join(packages)} ...")
        said = _install(as_root, packages)
        packages = lacking()
    if packages:
        command = f"apt-get install -y --no-install-recommends {' '.join(packages)}"
        told = f" (apt-get says: {said})" if said else ""
        raise UserError(f"missing on this machine: {', '.join(packages)}{told}. Install: {command}")


def _way_to_root() -> list[str] | None:
    """Return the prefix that lets apt-get install; None where it may not, or is not there."""
    if os.environ.get("FDE_RAY_SKIP_APT") or not shutil.which("apt-get"):
        return None
    if os.geteuid() == 0:
        return []
    sudo = ["sudo", "-n"]
    is_free = (
        shutil.which("sudo")
        and not subprocess.run([*sudo, "true"], capture_output=True, check=False).returncode
    )
    return sudo if is_free else None


def _install(as_root: Sequence[str], packages: Sequence[str]) -> str:
    """Return what apt-get said when it failed; the lists are refreshed before the second try."""
    install = [*as_root, "env", "DEBIAN_FRONTEND=noninteractive", *_APT, *_PATIENCE, *packages]
    if not trouble(install):
        return ""
    trouble([*as_root, "apt-get", "update", "-qq", *_PATIENCE])
    return trouble(install)


def trouble(argv: Sequence[str]) -> str:
    """Return what a command said when it failed, "" when it did not."""
    done = subprocess.run(
        argv, capture_output=True, text=True, errors="replace", check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if not done.returncode:
        return ""
    return shortened(done.stderr.strip()[-300:] or f"exit code {done.returncode}")
