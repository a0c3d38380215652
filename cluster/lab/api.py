"""The few questions the lab asks its own API server while it comes up."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any

from .layout import Layout
from .network import Network


class Api:
    """Speaks as the administrator; every answer is fresh, nothing is kept open."""

    def __init__(self, layout: Layout, network: Network) -> None:
        self._host = str(network.node)
        self._tls = ssl.create_default_context(cafile=str(layout.pki / "ca.crt"))
        self._tls.load_cert_chain(layout.pki / "admin.crt", layout.pki / "admin.key")

    def get(self, path: str, timeout_s: float = 2.0) -> Any:
        """Return the parsed answer (text when it is no JSON), or None when there is no good one."""
        connection = http.client.HTTPSConnection(
            self._host, 6443, context=self._tls, timeout=timeout_s
        )
        try:
            connection.request("GET", path, headers={"Accept": "application/json"})
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        if response.status != 200:
            return None
        try:
            return json.loads(body)
        except ValueError:
            return body.decode(errors="replace")

    def is_ready(self) -> bool:
        return bool(self.get("/readyz") == "ok")

    def node_is_ready(self, name: str) -> bool:
        """Ask the kubelet, too: what the server says of it may be old."""
        if self.get(f"/api/v1/nodes/{name}/proxy/healthz") != "ok":
            return False
        node = self.get(f"/api/v1/nodes/{name}") or {}
        conditions = node.get("status", {}).get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def has_system_namespace(self) -> bool:
        return bool(self.get("/api/v1/namespaces/kube-system"))

    def has_default_account(self) -> bool:
        """A namespace gets its `default` service account a second or two after it was made."""
        return bool(self.get("/api/v1/namespaces/default/serviceaccounts/default"))
