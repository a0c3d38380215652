"""One container ends another of its pod: its liveness probe is answered by its neighbour."""

from __future__ import annotations

import pytest

from tests.kube.kubectl import Kubectl, ends, phase, until
from tests.kube.pods import RUNTIMES, container, pod

pytestmark = [pytest.mark.kube, pytest.mark.slow]

PORT = 9000
SHIM = f"""
import http.server, os, threading, time
os.umask(0)
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if os.path.exists('/private/end') else 200); self.end_headers()
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(('', {PORT}), Health).serve_forever()
"""
AGENT = """
import os, signal, time
def stubborn(name):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        with open('/workspace/' + name, 'w') as file: file.write(str(time.time()))
        time.sleep(0.2)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: stubborn('orphan')
    os._exit(0)
stubborn('main')
"""


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_agent_that_ignores_every_signal_ends_when_its_shim_says_so(
    kubectl: Kubectl, namespace: str, runtime: str
) -> None:
    work = {"name": "work", "mountPath": "/workspace"}
    probe = {
        "httpGet": {"port": PORT, "path": "/"},
        "periodSeconds": 1,
        "failureThreshold": 2,
        "terminationGracePeriodSeconds": 1,
    }
    both = [
        container("shim", SHIM, volumeMounts=[work, {"name": "own", "mountPath": "/private"}]),
        container("agent", AGENT, volumeMounts=[work], livenessProbe=probe),
    ]
    volumes = [{"name": name, "emptyDir": {"sizeLimit": "16Mi"}} for name in ("work", "own")]
    kubectl.create(
        pod(namespace, "run", runtime, *both, volumes=volumes, terminationGracePeriodSeconds=60)
    )

    def in_shim(command: str) -> str:
        return kubectl.run("exec", "-n", namespace, "run", "-c", "shim", "--", "sh", "-c", command)

    kubectl.running_pod(namespace, "run")
    until(lambda: "orphan" in in_shim("ls /workspace"), 30, "the agent's orphan")
    in_shim("touch /private/end")
    took_s = until(lambda: "agent" in ends(kubectl.pod(namespace, "run")), 20, "the kill switch")
    assert took_s <= 10
    found = kubectl.pod(namespace, "run")
    assert (phase(found), ends(found)["agent"]["exitCode"]) == ("Running", 137)
    assert [s["restartCount"] for s in found["status"]["containerStatuses"]] == [0, 0]
    before = in_shim("cat /workspace/main /workspace/orphan")
    assert in_shim("sleep 1; cat /workspace/main /workspace/orphan") == before, "nobody writes"
