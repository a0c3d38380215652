"""Who we are to a cluster: a kubeconfig, or the service account of our own pod.

Tokens rotate: `Access.renew` reads them again.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from fde_ray.model.errors import UserError, shortened
from fde_ray.model.kubernetes import KubernetesProfile

FIRST, BEYOND = (36, 0, 1), (37,)
"""36.0.0 sends no credentials from inside a cluster."""
_ODD = (OSError, ValueError, TypeError, AttributeError, KeyError)
"""What the library raises over a file that is none."""
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Access:
    """An open way to one cluster. `configuration` is the library's."""

    def __init__(
        self,
        profile: KubernetesProfile,
        environ: Mapping[str, str],
        *,
        service_account: Path = SERVICE_ACCOUNT,
    ) -> None:
        from kubernetes.aio.client import Configuration  # noqa: PLC0415 - two seconds to load

        self.configuration: Any = Configuration()
        self._kubeconfig = _kubeconfig(profile, environ)
        self._context, self._environ = profile.context, environ
        self._account = service_account
        self._origin = f"the service account in {service_account}"
        if self._kubeconfig is None and "KUBERNETES_SERVICE_HOST" not in environ:
            raise UserError(
                "no cluster is named: set KUBECONFIG, or sandbox.kubernetes.kubeconfig in the "
                "profile"
            )

    async def renew(self) -> None:
        """Read all credentials anew. UserError says what is wrong with them."""
        from kubernetes.aio import config  # noqa: PLC0415

        try:
            if self._kubeconfig is None:
                self._renew_inside(config)
            else:
                await self._renew_outside(config, self._kubeconfig)
        except (config.ConfigException, yaml.YAMLError, *_ODD) as error:
            place = self._kubeconfig or self._account
            told = (
                "it is no kubeconfig" if isinstance(error, (TypeError, AttributeError)) else error
            )
            raise UserError(f"cannot use {place}: {shortened(str(told), 200)}") from error

    async def _renew_outside(self, config: Any, kubeconfig: str) -> None:
        loader = await config.load_kube_config(
            config_file=kubeconfig,
            context=self._context,
            client_configuration=self.configuration,
            persist_config=False,
        )
        chosen = loader.current_context
        server = str(getattr(loader, "host", ""))
        if not _is_server(server):
            key = f"clusters[{chosen['context']['cluster']}].cluster.server"
            raise ValueError(f"{key} is {server[:60]!r}; write https://host:port")
        self._origin = f"context {chosen['name']} of {kubeconfig}"

    def _renew_inside(self, config: Any) -> None:
        loader = config.incluster_config.InClusterConfigLoader(
            token_filename=str(self._account / "token"),
            cert_filename=str(self._account / "ca.crt"),
            environ=self._environ,
        )
        loader.load_and_set(self.configuration)

    async def headers(self) -> dict[str, str]:
        """Return what proves who we are; none when a certificate does."""
        found = await self.configuration.auth_settings()
        return {one["key"]: str(one["value"]).strip() for one in found.values() if one["value"]}

    async def check(self) -> None:
        """Refuse to go on with a library that would not say who we are."""
        from kubernetes import __version__  # noqa: PLC0415

        if not is_fit(__version__):
            raise UserError(
                f"kubernetes {__version__} is installed: install kubernetes>=36.0.1,<37"
            )
        if self._kubeconfig is None and not (await self.headers()).get("authorization"):
            raise UserError(
                f"kubernetes {__version__} would send no token of the service account: install "
                "kubernetes>=36.0.1,<37"
            )

    @property
    def server(self) -> str:
        """The API server's address and where it was read."""
        return f"{self.configuration.host}, from {self._origin}"

    @property
    def is_encrypted(self) -> bool:
        return str(self.configuration.host).startswith("https:")

    def addresses(self) -> tuple[str, ...]:
        """Return where the API server answers, as far as that is an address and no name."""
        parts = urlsplit(str(self.configuration.host))
        inside = self._environ.get("KUBERNETES_SERVICE_HOST", "")
        inside_port = self._environ.get("KUBERNETES_SERVICE_PORT", "443")
        pairs = ((parts.hostname or "", str(parts.port or 443)), (inside, inside_port))
        return tuple(dict.fromkeys(f"{bracketed(h)}:{p}" for h, p in pairs if is_ip(h)))


def _is_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    is_plain = url.isprintable() and " " not in url
    return is_plain and parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0


def is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def bracketed(host: str) -> str:
    """Return an address as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def _kubeconfig(profile: KubernetesProfile, environ: Mapping[str, str]) -> str | None:
    named = profile.kubeconfig or environ.get("KUBECONFIG")
    if named:
        places = [Path(one).expanduser() for one in named.split(os.pathsep) if one]
        for folder in filter(Path.is_dir, places):
            key = "sandbox.kubernetes.kubeconfig" if profile.kubeconfig else "KUBECONFIG"
            raise UserError(f"{key} names {folder}, which is a folder: name the file in it")
        if not any(map(Path.is_file, places)):
            raise UserError(f"there is no kubeconfig at {named}")
        return named
    own = Path(environ.get("HOME", "/nonexistent"), ".kube", "config")
    if "KUBERNETES_SERVICE_HOST" not in environ and own.is_file():
        return str(own)
    return None


def is_fit(version: str) -> bool:
    """Whether this version of the library is known to do what is needed."""
    parts = version.split(".")[:3]
    numbers = tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts)
    return FIRST <= numbers < BEYOND
