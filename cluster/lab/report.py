"""How the lab is: one record, shown as a table or as JSON."""

from __future__ import annotations

from fde_ray.model.base import Record

from . import cgroups
from .api import Api
from .containers import archives
from .daemons import daemons
from .fence import HOLDER, holder
from .layout import Layout
from .machine import check_root
from .modules import missing_modules
from .processes import last_lines, lives, read_record
from .rendering import NODE, SIMULATED_LABEL
from .state import read_state


class DaemonStatus(Record):
    """pid: None when it does not run; memory_mb: resident, None with it."""

    name: str
    pid: int | None = None
    memory_mb: int | None = None
    last_words: str | None = None
    """Only of one that should run and does not."""


class LabStatus(Record):
    """state: `up` only when every part runs and the node takes pods; `broken` says: run lab-up."""

    state: str
    kubeconfig: str | None = None
    node_address: str | None = None
    machine_address: str | None = None
    """Where a program on the machine listens so that pods reach it."""
    pods: str | None = None
    services: str | None = None
    node_ready: bool | None = None
    simulated_nodes: int | None = None
    processes: int = 0
    """Of the whole lab, pods included."""
    daemons: list[DaemonStatus] = []
    not_built: list[str] = []
    images: list[str] = []


def status(layout: Layout) -> LabStatus:
    not_built = [module.name for module in missing_modules(layout.builds)]
    images = [archive.name for archive in archives(layout)]
    state = read_state(layout)
    if state is None:
        return LabStatus(state="down", not_built=not_built, images=images)
    check_root()
    network = state.network
    names = [HOLDER, *(daemon.name for daemon in daemons(layout, network))]
    found = [_daemon(layout, name) for name in names]
    api = Api(layout, network) if holder(layout) else None
    ready = api.node_is_ready(NODE) if api else None
    is_up = bool(ready) and all(daemon.pid for daemon in found)
    return LabStatus(
        state="up" if is_up else "broken",
        kubeconfig=str(layout.kubeconfig),
        node_address=str(network.node),
        machine_address=str(network.machine),
        pods=str(network.pods),
        services=str(network.services),
        node_ready=ready,
        simulated_nodes=_simulated_nodes(api) if api else None,
        processes=len(cgroups.members()),
        daemons=found,
        not_built=not_built,
        images=images,
    )


def table(found: LabStatus) -> str:
    """Return the lines a person reads."""
    lines = [f"lab: {found.state}"]
    if found.kubeconfig:
        lines += [
            f"  KUBECONFIG       {found.kubeconfig}",
            f"  node, API        {found.node_address}  (ready: {_said(found.node_ready)})",
            f"  this machine     {found.machine_address}",
            f"  pods, services   {found.pods}, {found.services}",
            f"  simulated nodes  {_said(found.simulated_nodes)}",
            f"  processes        {found.processes}",
        ]
    lines += [_line(daemon) for daemon in found.daemons]
    if found.not_built:
        lines.append(f"  not built        {', '.join(found.not_built)} (make lab-build)")
    lines.append(f"  images           {', '.join(found.images) or 'none'}")
    return "\n".join(lines)


def _daemon(layout: Layout, name: str) -> DaemonStatus:
    record = read_record(layout.pids / name)
    if record is None or not lives(record):
        words = last_lines(layout.logs / f"{name}.log", 1)
        return DaemonStatus(name=name, last_words=words)
    return DaemonStatus(name=name, pid=record.pid, memory_mb=_memory_mb(record.pid))


def _memory_mb(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            values = dict(line.split(":", 1) for line in file)
        return int(values["VmRSS"].split()[0]) // 1024
    except (OSError, KeyError, ValueError):
        return None


def _simulated_nodes(api: Api) -> int | None:
    answer = api.get(f"/api/v1/nodes?labelSelector={SIMULATED_LABEL}%3Dtrue", timeout_s=10.0)
    return len(answer["items"]) if answer else None


def _line(daemon: DaemonStatus) -> str:
    if daemon.pid is None:
        return f"  {daemon.name:<19}not running: {daemon.last_words}"
    return f"  {daemon.name:<19}pid {daemon.pid}, {_said(daemon.memory_mb)} MB"


def _said(value: object) -> str:
    """Unknown is not zero and not no."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
