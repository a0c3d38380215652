"""Where the benchmark takes place: nodes and namespaces of its own in the lab, gone afterwards."""

from __future__ import annotations

import contextlib
import json
import math
import os
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from cluster.lab.api import Api
from cluster.lab.fence import run
from cluster.lab.layout import Layout, find_layout, image
from cluster.lab.lowering import stop_daemon
from cluster.lab.objects import as_list, simulated_node
from cluster.lab.raising import bring_up
from cluster.lab.state import locked, read_state
from fde_ray.model.errors import UserError
from fde_ray.sandbox.kubernetes.contract import LABEL_MANAGED, MANAGED, OWNER_NAME
from fde_ray.sandbox.kubernetes.fence import FenceSettings, as_yaml, fence_objects, parsed_peer
from fde_ray.sandbox.kubernetes.pods import Surroundings, run_pod

from .sessions import BENCH_LABEL, RUNTIME_CLASS, profile, session

Object = dict[str, Any]
FENCED, OPEN, ENGINE = "fde-bench-pods", "fde-bench-open", "fde-bench-engine"
ACCOUNT = "fde-ray-engine"
_NODES = f"{BENCH_LABEL}=pods"
_TRIES = 20
_PER_NODE = 500
_FIRST_NODE = 9000
"""Beyond the numbers that `python -m cluster.lab nodes` gives."""
_PATIENCE_S = 60.0
_GONE_S = 600.0
_TOKEN_S = "2h"


class Site(NamedTuple):
    layout: Layout
    host: str
    kubeconfig: Path
    """Of the account that a fence binds: what supervisors and plain clients act as."""
    token: str
    owner_uid: str

    @property
    def admin_tls(self) -> ssl.SSLContext:
        tls = self.plain_tls
        pki = self.layout.pki
        tls.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        return tls

    @property
    def plain_tls(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.layout.pki / "ca.crt"))

    def pod(self, subject: str, namespace: str) -> Object:
        """Return the body that a supervisor would send."""
        around = Surroundings(owner_uid=self.owner_uid if namespace == FENCED else None)
        return run_pod(session(subject), profile(namespace, None), around)


@contextmanager
def without_policies(say: Callable[[str], None]) -> Iterator[None]:
    """Have nobody enforce network policies meanwhile: it takes half a core to sort addresses again
    at each change of a pod, for one node that is real."""
    layout = find_layout(os.environ)
    stop_daemon(layout, "kube-router")
    try:
        yield
    finally:
        bring_up(layout, say)


@contextmanager
def opened_site(folder: Path, pods: int, say: Callable[[str], None]) -> Iterator[Site]:
    """Have room for so many pods at once. UserError in one line when there is no lab.

    folder: for the account's kubeconfig. What a run left that was killed is cleared away first.
    """
    layout = find_layout(os.environ)
    state = read_state(layout)
    if state is None or not Api(layout, state.network).is_ready():
        raise UserError("the lab is down: run `make lab-up` first (docs/lab.md)")
    kubectl = _Kubectl(layout)
    with locked(layout, "bench-pods"):
        say("making nodes and namespaces")
        objects = _fence(pods)
        try:
            kubectl.cleared(objects)
            kubectl.applied([*_nodes(pods), *_open_namespace()])
            kubectl.applied(objects)
            site = _site(kubectl, layout, f"https://{state.network.node}:6443", folder)
            _until_it_holds(kubectl, site)
            yield site
        finally:
            say("taking nodes and namespaces away")
            kubectl.cleared(objects)


def _site(kubectl: _Kubectl, layout: Layout, host: str, folder: Path) -> Site:
    token = kubectl("create", "token", ACCOUNT, "-n", ENGINE, "--duration", _TOKEN_S).strip()
    path = _kubeconfig(folder / "account.kubeconfig", host, layout, token)
    owner = kubectl.found("get", "configmap", OWNER_NAME, "-n", FENCED)
    return Site(layout, host, path, token, str(owner["metadata"]["uid"]))


def _until_it_holds(kubectl: _Kubectl, site: Site) -> None:
    """Return when the open namespace takes pods and the fence refuses weak ones."""
    kubectl.until(lambda: kubectl.tries(OPEN, site.pod("probe.1", OPEN)) == "")
    weak = site.pod("probe.1", FENCED)
    del weak["spec"]["activeDeadlineSeconds"]
    kubectl.until(lambda: "ValidatingAdmissionPolicy" in kubectl.tries(FENCED, weak))
    kubectl("wait", "--for=condition=Ready", "nodes", "-l", _NODES)


class _Kubectl:
    def __init__(self, layout: Layout) -> None:
        how = ("--kubeconfig", str(layout.kubeconfig))
        self._argv = [str(layout.bin / "kubectl"), *how]

    def __call__(self, *words: str, text: str = "", timeout_s: float = 60.0) -> str:
        return run([*self._argv, *words], text=text, timeout_s=timeout_s)

    def found(self, *words: str) -> Object:
        found: Object = json.loads(self(*words, "-o", "json"))
        return found

    def namespaces(self, *words: str) -> frozenset[str]:
        found = self("get", "namespaces", "-o", "name", *words).split()
        return frozenset(name.rpartition("/")[2] for name in found)

    def applied(self, objects: Sequence[Object]) -> None:
        self("apply", "--server-side", "-f", "-", text=as_yaml(objects))

    def tries(self, namespace: str, pod: Object) -> str:
        """Return why the server would not take a pod, "" when it would."""
        try:
            self("create", "--dry-run=server", "-n", namespace, "-f", "-", text=json.dumps(pod))
        except UserError as error:
            return str(error)
        return ""

    def until(self, holds: Callable[[], bool]) -> None:
        give_up = time.monotonic() + _PATIENCE_S
        while not holds():
            if time.monotonic() > give_up:
                raise UserError("the benchmark's namespaces do not come up: see `make lab-status`")
            time.sleep(0.2)

    def cleared(self, fence: Sequence[Object]) -> None:
        """Take away what is the benchmark's. Priority classes go with the last fence."""
        for namespace in self.namespaces() & {FENCED, OPEN}:
            self._without_pods(namespace)
        others = self.namespaces("-l", f"{LABEL_MANAGED}={MANAGED}") - {FENCED}
        own = [each for each in fence if not others or each["kind"] != "PriorityClass"]
        gone = ("delete", "--ignore-not-found", f"--timeout={_GONE_S:.0f}s")
        self(*gone, "-f", "-", text=as_list([*own, *_open_namespace()]), timeout_s=_GONE_S + 30)
        self(*gone, "nodes", "-l", _NODES, timeout_s=_GONE_S + 30)

    def _without_pods(self, namespace: str) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods?gracePeriodSeconds=0"
        for _ in range(_TRIES):
            # The server breaks off after a minute, with part of the work done.
            with contextlib.suppress(UserError):
                self("delete", "--raw", path, timeout_s=_GONE_S)
                return
        raise UserError(f"pods of namespace {namespace} cannot be deleted")


def _fence(pods: int) -> list[Object]:
    """Return all of a fence but its network policies: simulated pods have no network, and whoever
    enforces policies on the lab's one node would sort their addresses again at each change."""
    nowhere = (parsed_peer("10.0.0.7:8080"),)
    settings = FenceSettings(
        namespace=FENCED,
        engine_namespace=ENGINE,
        runtime_class=RUNTIME_CLASS,
        run_plane=nowhere,
        grade_plane=nowhere,
        pods=pods + 2,
        grading_pods=1,
        images=(image("run"),),
    )
    return [each for each in fence_objects(settings) if each["kind"] != "NetworkPolicy"]


def _nodes(pods: int) -> list[Object]:
    count = math.ceil(pods / _PER_NODE) + 1
    nodes = [simulated_node(_FIRST_NODE + number) for number in range(count)]
    for node in nodes:
        node["metadata"]["labels"][BENCH_LABEL] = "pods"
    return nodes


def _open_namespace() -> list[Object]:
    """Return a namespace without a fence, where the account may make pods, too."""
    rbac = "rbac.authorization.k8s.io"
    account = {"kind": "ServiceAccount", "namespace": ENGINE, "name": ACCOUNT}
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": {"namespace": OPEN, "name": ACCOUNT},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "edit"},
        "subjects": [account],
    }
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPEN}}, binding]


def _kubeconfig(path: Path, host: str, layout: Layout, token: str) -> Path:
    cluster = {"server": host, "certificate-authority": str(layout.pki / "ca.crt")}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": cluster}],
        "users": [{"name": "engine", "user": {"token": token}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "engine"}}],
        "current-context": "lab",
    }
    path.touch(0o600)
    path.write_text(json.dumps(document))
    return path
