"""Whether the endpoints of a profile can be used: checked before a model is called."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

if TYPE_CHECKING:
    from fde_ray.model.profile import Endpoint, Profile

PATIENCE_S = 3.0


async def faults(profile: Profile) -> list[str | None]:
    """Return for each endpoint what has to be mended, or None; nothing is sent to any."""
    return list(await asyncio.gather(*(_fault(endpoint) for endpoint in profile.endpoints)))


async def warn(profile: Profile) -> None:
    """Say what would keep runs waiting or have them set aside; it can be mended meanwhile."""
    from .output import note

    for endpoint, fault in zip(profile.endpoints, await faults(profile), strict=True):
        if fault is not None:
            note(f"warning: endpoint {endpoint.match}: {fault}")


async def _fault(endpoint: Endpoint) -> str | None:
    return _written_wrong(endpoint) or _keyless(endpoint) or await _unreachable(endpoint)


def _written_wrong(endpoint: Endpoint) -> str | None:
    url = endpoint.base_url
    if url is None:
        return None
    if not url.startswith(("http://", "https://")):
        return f"{url} must begin with http(s)://"
    if url.rstrip("/").endswith("/chat/completions"):
        return f"{url} must be the root before /chat/completions"
    return None


def _keyless(endpoint: Endpoint) -> str | None:
    if endpoint.api_key_env and not os.environ.get(endpoint.api_key_env):
        return f"set the environment variable {endpoint.api_key_env}"
    if endpoint.api_key_file and not Path(endpoint.api_key_file).expanduser().is_file():
        return f"no file {endpoint.api_key_file}"
    return None


async def _unreachable(endpoint: Endpoint) -> str | None:
    if endpoint.base_url is None:
        return None
    try:
        url = urlsplit(endpoint.base_url)
        host, port = url.hostname or "", url.port or {"http": 80}.get(url.scheme, 443)
    except ValueError as error:
        return f"{endpoint.base_url}: {error}"
    if getproxies().get(url.scheme) and not proxy_bypass(host):
        return None  # the proxy reaches hosts that this machine may not
    try:
        async with asyncio.timeout(PATIENCE_S):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return f"{host}:{port} does not answer within {PATIENCE_S:g} s"
    except OSError:
        return f"cannot connect to {host}:{port}; is the server running?"
    writer.close()
    return None
