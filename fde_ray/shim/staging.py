"""The session's folders on the host, filled before the sandbox starts."""

from __future__ import annotations

import os

from .boxes import RUN_AT, Bind
from .inputs import BadInput, Inputs
from .plane import Plane
from .trees import walk
from .unpacking import unpack
from .wire import Unreachable


class Staging:
    """Maps absolute paths inside the sandbox to host folders below `folder`."""

    def __init__(self, folder: str, inputs: Inputs) -> None:
        self._inputs = inputs
        self._box = os.path.join(folder, "box")
        self.run = os.path.join(self._box, "run")
        self._hosts: dict[str, str] = {}
        self._binds: list[Bind] = []
        self._locked_files: list[Bind] = []

    def prepare(self, plane: Plane) -> None:
        """Fetch, unpack and write all inputs. One try; what an earlier try left is fine."""
        os.makedirs(self.run, mode=0o755, exist_ok=True)
        for number, mount in enumerate(self._inputs.mounts):
            host = os.path.join(self._box, f"m{number}")
            if not os.path.isdir(host):
                self._fetch(plane, mount.archive, host)
            self._add_folder(mount.at, host, mount.read_only)
        for number, at in enumerate(sorted({self._inputs.collect, self._inputs.workdir})):
            if self.host_path(at) is None:
                host = os.path.join(self._box, f"w{number}")
                os.makedirs(host, mode=0o755, exist_ok=True)
                self._add_folder(at, host, read_only=False)
        for number, file in enumerate(self._inputs.files):
            self._write(file.at, file.text, file.read_only, number)

    def _fetch(self, plane: Plane, archive: str, host: str) -> None:
        part = host + ".part"
        _remove_tree(part)
        os.makedirs(part, mode=0o755)
        cap = self._inputs.limits.disk_bytes
        with plane.exchange("GET", f"/v1/archives/{archive}", timeout=300.0) as reply:
            unpack(reply.read, part, cap_bytes=cap)
            if reply.read_some():
                raise Unreachable("the archive has a tail")
        os.rename(part, host)

    def _add_folder(self, at: str, host: str, read_only: bool) -> None:
        if at in self._hosts:
            return
        self._hosts[at] = host
        self._binds.append(Bind(host, at, read_only))

    def _write(self, at: str, text: str, read_only: bool, number: int) -> None:
        host = self.host_path(at) or os.path.join(self._box, f"f{number}")
        if not host.startswith(self._box + "/"):
            raise BadInput(f"{at} lies outside of the session")
        os.makedirs(os.path.dirname(host), mode=0o755, exist_ok=True)
        with open(host, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        self._hosts.setdefault(at, host)
        if read_only or self._is_lone(host):
            self._locked_files.append(Bind(host, at, read_only))

    def _is_lone(self, host: str) -> bool:
        return os.path.dirname(host) == self._box

    def host_path(self, at: str) -> str | None:
        """Return where an inside path lies on the host; None when no mount holds it."""
        fits = [m for m in self._hosts if at == m or at.startswith(m + "/")]
        if not fits:
            return None
        best = max(fits, key=len)
        return self._hosts[best] + at[len(best) :]

    def binds(self) -> list[Bind]:
        """Return all mounts, outer ones first."""
        folders = sorted(self._binds, key=lambda b: b.at.count("/"))
        return [*folders, *self._locked_files, Bind(self.run, RUN_AT)]

    def paths(self) -> dict[str, str]:
        """Return inside path -> host path, for a runtime without a file system of its own."""
        return dict(self._hosts)

    @property
    def collected(self) -> str:
        host = self.host_path(self._inputs.collect)
        if host is None:
            raise BadInput("the collected folder is not mounted")
        return host


class Deliverables:
    """Tells whether the agent has put a file of its own into the workspace (protocol rule 12)."""

    def __init__(self, root: str, state_dirs: tuple[str, ...], exclude: tuple[str, ...]) -> None:
        names = {"data", "instruction.md", "NOTES.md", *state_dirs, *exclude}
        self._root = root
        self._skipped = {os.fsencode(name) for name in names}
        self._given = {entry.path for entry in walk(root, self._skipped) if entry.is_file}

    def exist(self) -> bool:
        return any(
            entry.is_file and entry.path not in self._given
            for entry in walk(self._root, self._skipped)
        )


def _remove_tree(path: str) -> None:
    import shutil  # noqa: PLC0415  (slow to import, needed after a broken download only)

    if os.path.isdir(path):
        shutil.rmtree(path)
