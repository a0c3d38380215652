"""Simulated nodes of a running lab: KWOK plays them and whatever pods they are given."""

from __future__ import annotations

import time

from fde_ray.model.errors import UserError

from .api import Api
from .building import Say
from .fence import run
from .layout import Layout
from .machine import check_root
from .objects import as_list, simulated_node
from .rendering import SIMULATED_LABEL
from .state import read_state

_READY_S = 60.0


def set_nodes(layout: Layout, count: int, say: Say) -> None:
    """Have exactly `count` simulated nodes and return when all are ready."""
    if count < 0:
        raise UserError(f"{count} nodes cannot be: say 0 or more")
    state = read_state(layout)
    if state is None:
        raise UserError("the lab is down: run `make lab-up` first")
    check_root()
    wanted = [simulated_node(number) for number in range(count)]
    api = Api(layout, state.network)
    names = {node["metadata"]["name"] for node in wanted}
    if surplus := sorted(_nodes(api).keys() - names):
        _kubectl(layout, "delete", "node", "--wait=false", *surplus)
    if wanted:
        _kubectl(layout, "apply", "--server-side", "-f", "-", text=as_list(wanted))
    give_up = time.monotonic() + _READY_S
    while not all(_nodes(api).get(name) for name in names):
        if time.monotonic() > give_up:
            raise UserError(f"simulated nodes are not ready; see {layout.logs}/kwok.log")
        time.sleep(0.2)
    say(f"{count} simulated nodes")


def _nodes(api: Api) -> dict[str, bool]:
    """Return whether each simulated node is ready, by name."""
    path = f"/api/v1/nodes?labelSelector={SIMULATED_LABEL}%3Dtrue"
    answer = api.get(path, timeout_s=10.0) or {"items": []}
    return {node["metadata"]["name"]: _is_ready(node["status"]) for node in answer["items"]}


def _is_ready(status: dict[str, object]) -> bool:
    conditions = status.get("conditions") or []
    assert isinstance(conditions, list)
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _kubectl(layout: Layout, *words: str, text: str = "") -> None:
    how = ("--kubeconfig", str(layout.kubeconfig))
    run([str(layout.bin / "kubectl"), *how, *words], text=text)
