"""A default-deny policy closes everything but the one address it allows.

Each closed address is shown to be open for a pod outside the policy, or its refusal proves nothing.
"""

from __future__ import annotations

import json
import socket

import pytest

from cluster.lab.layout import Layout
from cluster.lab.state import read_state
from tests.kube.kubectl import Kubectl, until
from tests.kube.pods import RUNTIMES, container, pod, policy

pytestmark = pytest.mark.kube

PORT = 8080
SERVER = f"""
import http.server
class Yes(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'yes')
    def log_message(self, *words): pass
http.server.HTTPServer(('', {PORT}), Yes).serve_forever()
"""
PROBE = """
import json, socket, time
targets = json.loads('''%s''')
def opens(address, port):
    try:
        socket.create_connection((address, port), timeout=1).close()
        return True
    except OSError:
        return False
for _ in range(60):
    print(json.dumps({name: opens(*where) for name, where in targets.items()}))
    time.sleep(1)
"""


def answers(kubectl: Kubectl, namespace: str, name: str) -> dict[str, bool]:
    """Return what the pod's last finished round found; empty when none has finished."""
    lines = kubectl.logs(namespace, name).splitlines()
    found: dict[str, bool] = json.loads(lines[-1]) if lines else {}
    return found


def address(kubectl: Kubectl, namespace: str, name: str) -> str:
    return str(kubectl.running_pod(namespace, name)["status"]["podIP"])


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_default_deny_leaves_one_address_open(
    kubectl: Kubectl, namespace: str, layout: Layout, runtime: str
) -> None:
    state = read_state(layout)
    assert state is not None
    kubectl.create(
        pod(namespace, "gateway", "runc", container("main", SERVER)),
        pod(namespace, "stranger", "runc", container("main", SERVER)),
        policy(
            namespace,
            "fenced",
            podSelector={"matchLabels": {"fenced": "yes"}},
            policyTypes=["Ingress", "Egress"],
            egress=[
                {
                    "to": [{"podSelector": {"matchLabels": {"app": "gateway"}}}],
                    "ports": [{"port": PORT, "protocol": "TCP"}],
                }
            ],
        ),
    )
    targets = {
        "gateway": (address(kubectl, namespace, "gateway"), PORT),
        "stranger": (address(kubectl, namespace, "stranger"), PORT),
        "api-service": (str(state.network.api_service), 443),
        "api-node": (str(state.network.node), 6443),
        "kubelet": (str(state.network.node), 10250),
        "dns": (str(state.network.dns_service), 53),
    }
    script = PROBE % json.dumps(targets)
    kubectl.create(
        pod(namespace, "free", runtime, container("main", script)),
        pod(namespace, "fenced", runtime, container("main", script), labels={"fenced": "yes"}),
    )
    for name in ("free", "fenced"):
        kubectl.running_pod(namespace, name)
    everything = dict.fromkeys(targets, True)
    until(lambda: answers(kubectl, namespace, "free") == everything, 40, "the control: all open")
    closed = dict.fromkeys(targets, False) | {"gateway": True}
    until(lambda: answers(kubectl, namespace, "fenced") == closed, 40, "one open, the rest closed")
    assert answers(kubectl, namespace, "free") == everything


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_pod_reaches_a_program_on_the_machine(
    kubectl: Kubectl, namespace: str, layout: Layout, runtime: str
) -> None:
    """As a gateway of ours would be that runs beside the lab, not in it."""
    state = read_state(layout)
    assert state is not None
    with socket.create_server((str(state.network.machine), 0)) as server:
        server.settimeout(30)
        where = server.getsockname()
        script = f"import socket\nsocket.create_connection({where!r}).sendall(b'hello')"
        kubectl.create(pod(namespace, "caller", runtime, container("main", script)))
        connection, (caller, _) = server.accept()
        with connection:
            assert connection.recv(5) == b"hello"
    assert caller == kubectl.pod(namespace, "caller")["status"]["podIP"]


@pytest.mark.alone
def test_no_pod_reaches_beyond_the_lab(kubectl: Kubectl, namespace: str) -> None:
    """Not even without a policy: no route leads out of the lab's network.

    The probes have decoys at such addresses while they run.
    """
    targets = {"outside": ("198.51.100.7", 80), "metadata": ("169.254.169.254", 80)}
    script = PROBE % json.dumps(targets)
    kubectl.create(pod(namespace, "out", "runc", container("main", script)))
    kubectl.running_pod(namespace, "out")
    until(lambda: bool(answers(kubectl, namespace, "out")), 30, "a first round")
    assert answers(kubectl, namespace, "out") == {"outside": False, "metadata": False}
