"""Brings the lab up, or what is missing of it: idempotent, and clear about what is in the way."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from fde_ray.model.errors import UserError

from . import cgroups, lowering
from .api import Api
from .building import Say
from .certificates import leaves, write_certificates
from .containers import Store, archives
from .daemons import Daemon, daemons
from .fence import entering, holder, missing_folders, raise_fence, run
from .layout import NAME, Layout
from .machine import SYSTEM_PATH, check_layers, check_room, check_root, lacking_for_running
from .modules import TABLE, build_folder, missing_modules
from .network import Network, chosen_network, used_networks
from .objects import as_list, first_objects
from .processes import PidRecord, last_lines, lives, read_record, spawn, write_record
from .providing import provide
from .rendering import NODE, files, kubeconfig
from .state import LabState, locked, read_state, write_state

_READY_S = 120.0
_POLICY_CHAIN = "KUBE-ROUTER-FORWARD"


def bring_up(layout: Layout, say: Say) -> None:
    """Start whatever does not run yet and return when pods can run under network policies."""
    _check(layout, say)
    with locked(layout):
        Lab(layout, _state(layout, say)).bring_up(say)


def unpack_images(layout: Layout, say: Say) -> None:
    """Import new images: into the lab that is up, else so that the next one need not wait."""
    _check(layout, say)
    with locked(layout):
        if not Store(layout, [], {}).missing():
            return
        state = read_state(layout)
        if state is not None and (fence := holder(layout)):
            Lab(layout, state).take_images(fence, say)
            return
        lab = Lab(layout, _state(layout, say))
        try:
            lab.unpack_images(say)
        finally:
            lowering.clear(layout, read_state(layout))


class Lab:
    """A lab whose addresses are known, running or not."""

    def __init__(self, layout: Layout, state: LabState) -> None:
        self.layout = layout
        self.network: Network = state.network
        self._daemons = {each.name: each for each in daemons(layout, state.network)}
        # With a home of its own no program leaves a cache in the user's.
        path = f"{layout.bin}:{SYSTEM_PATH}"
        self.env = {"PATH": path, "HOME": str(layout.home), "LANG": "C.UTF-8"}
        self.group = cgroups.make_groups()

    def bring_up(self, say: Say) -> None:
        began = time.monotonic()
        self._write_files()
        is_new = holder(self.layout) is None
        fence = raise_fence(self.layout, self.network, self.group, self.env)
        enter = entering(fence)
        store = Store(self.layout, enter, self.env)
        if is_new:
            store.reset()
        self._start_all("nothing", fence)
        store.wait()
        if is_new:
            self._import_images(store, fence, say)
        api = Api(self.layout, self.network)
        self._wait("the API server", api.is_ready)
        say(f"API server ready after {time.monotonic() - began:.1f} s")
        self._start_all("api", fence)
        self._apply(api, enter)
        self._wait("the node", lambda: api.node_is_ready(NODE))
        self._start_all("node", fence)
        self._wait("the first service account", api.has_default_account)
        self._wait("the network policies", lambda: self._has_policies(enter))
        say(f"node ready after {time.monotonic() - began:.1f} s")

    def unpack_images(self, say: Say) -> None:
        """Run containerd alone for as long as it takes; it is left running."""
        self._write_files()
        fence = raise_fence(self.layout, self.network, self.group, self.env)
        store = Store(self.layout, entering(fence), self.env)
        store.reset()
        self._start(self._daemons["containerd"], fence)
        store.wait()
        self._import_images(store, fence, say)

    def take_images(self, fence: PidRecord, say: Say) -> None:
        """Import while pods run; those that are there keep the image they began with."""
        store = Store(self.layout, entering(fence), self.env)
        for archive in store.missing():
            store.add(archive, say, only_here=True)

    def _start_all(self, needs: str, fence: PidRecord) -> None:
        for daemon in self._daemons.values():
            if daemon.needs == needs:
                self._start(daemon, fence)

    def _start(self, daemon: Daemon, fence: PidRecord) -> None:
        record_file = self.layout.pids / daemon.name
        if lives(read_record(record_file)):
            return
        log = self.layout.logs / f"{daemon.name}.log"
        argv = [*entering(fence), *daemon.argv]
        write_record(record_file, spawn(argv, log, self.group, self.env))

    def _import_images(self, store: Store, fence: PidRecord, say: Say) -> None:
        """Only while no container exists can the catalogue of images be kept for the next lab."""
        missing = store.missing()
        for archive in missing:
            store.add(archive, say)
        if missing:
            lowering.stop_daemon(self.layout, "containerd")
            store.keep_catalogue()
            self._start(self._daemons["containerd"], fence)
            store.wait()

    def _write_files(self) -> None:
        layout = self.layout
        if not (layout.pki / "ca.crt").exists():
            wanted = leaves(self.network, NODE)
            write_certificates(layout.pki, wanted, datetime.now(UTC))
        for user in ("admin", "controller-manager", "scheduler", "kubelet", "proxy"):
            _write(layout.kubeconfig_of(user), kubeconfig(user, self.network, layout.pki), 0o600)
        for name, text in files(layout, self.network).items():
            _write(layout.home / name, text)
        layout.logs.mkdir(exist_ok=True)
        layout.kubelet_settings.mkdir(exist_ok=True)
        _link_binaries(layout)

    def _apply(self, api: Api, enter: list[str]) -> None:
        self._wait("the first namespace", api.has_system_namespace)
        kubectl = [*enter, str(self.layout.bin / "kubectl")]
        how = ["--kubeconfig", str(self.layout.kubeconfig), "apply", "--server-side", "-f", "-"]
        run([*kubectl, *how], text=as_list(first_objects(self.network)), env=self.env)

    def _has_policies(self, enter: list[str]) -> bool:
        argv = [*enter, "iptables", "-w", "-S", _POLICY_CHAIN]
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0

    def _wait(self, what: str, is_there: Callable[[], bool]) -> None:
        give_up = time.monotonic() + _READY_S
        while not is_there():
            for path in sorted(self.layout.pids.iterdir()):
                if not lives(read_record(path)):
                    said = last_lines(self.layout.logs / f"{path.name}.log")
                    raise UserError(f"{path.name} ended while the lab came up: {said}")
            if time.monotonic() > give_up:
                raise UserError(
                    f"{what} is not ready after {_READY_S:.0f} s; see {self.layout.logs}"
                )
            time.sleep(0.1)


def _check(layout: Layout, say: Say) -> None:
    check_root()
    provide(lacking_for_running, say)
    if missing := missing_modules(layout.builds):
        names = ", ".join(module.name for module in missing)
        raise UserError(f"not built yet: {names}. Run `make lab-build` (25 minutes when cold)")
    if "pause" not in [archive.name for archive in archives(layout)]:
        raise UserError("no pod can start without images: run `make lab-images` (two minutes)")


def _state(layout: Layout, say: Say) -> LabState:
    """Return the note of the lab that runs, or of a new one on a cleared place."""
    state = read_state(layout)
    if state is not None and holder(layout):
        return state
    if state is not None:
        say("a lab ended without being taken down; clearing what is left of it")
        lowering.clear(layout, state)
    _refuse_occupied()
    check_room(layout.home, layout.cache)
    check_layers(layout.cache)
    state = LabState(block=chosen_network(used_networks()).block, made=missing_folders())
    write_state(layout, state)
    return state


def _refuse_occupied() -> None:
    if Path(f"/sys/class/net/{NAME}").exists():
        raise UserError(
            f"a link named {NAME} is in the way and is not this lab's: look at "
            f"`ip link show {NAME}` and remove it with `ip link delete {NAME}`"
        )
    if strangers := cgroups.members():
        raise UserError(
            f"the control group {NAME} holds processes of another lab (for example pid "
            f"{min(strangers)}): take that one down first"
        )


def _link_binaries(layout: Layout) -> None:
    layout.bin.mkdir(exist_ok=True)
    for module in TABLE:
        folder = build_folder(layout.builds, module)
        for name in module.binaries:
            link = layout.bin / name
            if not link.exists():
                link.unlink(missing_ok=True)
                link.symlink_to(folder / name)
    kubectl = layout.bin / "kubectl"
    if not kubectl.exists():
        # Its cache of what the server offers goes with the lab.
        where = f'export KUBECACHEDIR="{layout.home}/kubectl-cache"'
        kubectl.write_text(f'#!/bin/sh\n{where}\nexec {layout.bin}/kube kubectl "$@"\n')
        kubectl.chmod(0o755)


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.touch(mode)
        path.write_text(text)
