"""The session's folders on the host, filled before the sandbox starts."""

from __future__ import annotations

import os

from .boxes import BIN_AT, RUN_AT, Bind
from .evaluating import COMMAND, launcher
from .inputs import BadInput, Inputs
from .plane import Plane
from .trees import walk
from .unpacking import unpack
from .wire import Unreachable


class Staging:
    """Maps absolute paths inside the sandbox to host folders below `folder`."""

    def __init__(self, folder: str, inputs: Inputs, python: str) -> None:
        self._inputs, self._python = inputs, python
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
        if self._inputs.evaluate:
            self._install_evaluate()

    def _install_evaluate(self) -> None:
        """Put the command on the PATH, and where `python3 evaluate` looks for it."""
        folder = os.path.join(self._box, "bin")
        os.makedirs(folder, mode=0o755, exist_ok=True)
        command = os.path.join(folder, COMMAND)
        with open(command, "w", encoding="utf-8") as file:
            file.write(launcher(self._python))
        os.chmod(command, 0o755)  # noqa: S103  (a command)
        self._add_folder(BIN_AT, folder, read_only=True)
        if self._inputs.workdir != self._inputs.collect:
            self._write(f"{self._inputs.workdir}/{COMMAND}", launcher(self._python), False, 0)

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
        self._clear_way(host)
        os.makedirs(os.path.dirname(host), mode=0o755, exist_ok=True)
        with open(host, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
        self._hosts.setdefault(at, host)
        if read_only or self._is_lone(host):
            self._locked_files.append(Bind(host, at, read_only))

    def _clear_way(self, host: str) -> None:
        """Remove what an archive has in the place of our file, and files in place of its folders.

        Links, too: nothing of ours may be written through one.
        """
        above = self._box
        for part in os.path.relpath(os.path.dirname(host), self._box).split("/"):
            above = os.path.join(above, part)
            if os.path.lexists(above) and (os.path.islink(above) or not os.path.isdir(above)):
                os.unlink(above)
        if os.path.isdir(host) and not os.path.islink(host):
            _remove_tree(host)
        elif os.path.lexists(host):
            os.unlink(host)

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
