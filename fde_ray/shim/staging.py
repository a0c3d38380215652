"""The session's folders as the shim sees them, filled before the agent may start.

`Staging` is what a sandbox on this machine and a pod have in common; `BoxStaging` makes folders for
the one, `pod_staging` fills the volumes of the other.
"""

from __future__ import annotations

import os

from .boxes import BIN_AT, RUN_AT, Bind
from .evaluating import COMMAND, launcher
from .inputs import BadInput, InputFile, Inputs, Mount
from .plane import Plane
from .trees import walk
from .unpacking import unpack
from .wire import Unreachable


class Staging:
    """Maps absolute paths inside to real folders. Where those lie is for subclasses to say."""

    def __init__(self, inputs: Inputs, python: str) -> None:
        self._inputs, self._python = inputs, python
        self._hosts: dict[str, str] = {}

    def prepare(self, plane: Plane) -> None:
        """Fetch, unpack and write all inputs. One try; what an earlier try left is fine."""
        for number, mount in enumerate(self._inputs.mounts):
            self._add_folder(mount.at, self._filled(plane, number, mount), mount.read_only)
        for number, at in enumerate(sorted({self._inputs.collect, self._inputs.workdir})):
            if self.host_path(at) is None:
                self._add_folder(at, self._empty(number, at), read_only=False)
        for number, file in enumerate(self._inputs.files):
            self._write(file, number)
        if self._inputs.evaluate:
            self._install_evaluate()

    def _filled(self, plane: Plane, number: int, mount: Mount) -> str:
        """Return the folder that holds the mount's archive."""
        raise NotImplementedError

    def _empty(self, number: int, at: str) -> str:
        """Return a folder for an inside path that no mount holds."""
        raise NotImplementedError

    def _place(self, at: str, number: int) -> tuple[str, str]:
        """Return where a file of ours goes, and the folder that it must lie below."""
        raise NotImplementedError

    def _written(self, file: InputFile, host: str) -> None:
        """Lock a file of ours that is in its place, if it must be."""
        raise NotImplementedError

    def _install_evaluate(self) -> None:
        """Put the command where `python3 evaluate` looks for it."""
        if self._inputs.workdir != self._inputs.collect:
            at = f"{self._inputs.workdir}/{COMMAND}"
            self._write(InputFile(at, launcher(self._python), read_only=False), 0)

    def _fetch(self, plane: Plane, archive: str, folder: str) -> None:
        cap = self._inputs.limits.disk_bytes
        with plane.exchange("GET", f"/v1/archives/{archive}", timeout=300.0) as reply:
            unpack(reply.read, folder, cap_bytes=cap)
            if reply.read_some():
                raise Unreachable("the archive has a tail")

    def _add_folder(self, at: str, host: str, read_only: bool) -> None:
        self._hosts.setdefault(at, host)

    def _write(self, file: InputFile, number: int) -> None:
        host, root = self._place(file.at, number)
        clear_way(host, root)
        os.makedirs(os.path.dirname(host), mode=0o755, exist_ok=True)
        with open(host, "w", encoding="utf-8", errors="replace") as out:
            out.write(file.text)
        self._hosts.setdefault(file.at, host)
        self._written(file, host)

    def host_path(self, at: str) -> str | None:
        """Return where an inside path really lies; None when no mount holds it."""
        fits = [m for m in self._hosts if at == m or at.startswith(m + "/")]
        if not fits:
            return None
        best = max(fits, key=len)
        return self._hosts[best] + at[len(best) :]

    @property
    def collected(self) -> str:
        host = self.host_path(self._inputs.collect)
        if host is None:
            raise BadInput("the collected folder is not mounted")
        return host


class BoxStaging(Staging):
    """Folders below the session's own, for a sandbox on this machine to bind."""

    def __init__(self, folder: str, inputs: Inputs, python: str) -> None:
        super().__init__(inputs, python)
        self._box = os.path.join(folder, "box")
        self.run = os.path.join(self._box, "run")
        self._binds: list[Bind] = []
        self._locked_files: list[Bind] = []

    def prepare(self, plane: Plane) -> None:
        os.makedirs(self.run, mode=0o755, exist_ok=True)
        super().prepare(plane)

    def binds(self) -> list[Bind]:
        """Return all mounts, outer ones first."""
        folders = sorted(self._binds, key=lambda b: b.at.count("/"))
        return [*folders, *self._locked_files, Bind(self.run, RUN_AT)]

    def paths(self) -> dict[str, str]:
        """Return inside path -> host path, for a runtime without a file system of its own."""
        return dict(self._hosts)

    def _filled(self, plane: Plane, number: int, mount: Mount) -> str:
        host = os.path.join(self._box, f"m{number}")
        if not os.path.isdir(host):
            part = host + ".part"
            remove_tree(part)
            os.makedirs(part, mode=0o755)
            self._fetch(plane, mount.archive, part)
            os.rename(part, host)
        return host

    def _empty(self, number: int, at: str) -> str:
        host = os.path.join(self._box, f"w{number}")
        os.makedirs(host, mode=0o755, exist_ok=True)
        return host

    def _add_folder(self, at: str, host: str, read_only: bool) -> None:
        if at not in self._hosts:
            self._binds.append(Bind(host, at, read_only))
        super()._add_folder(at, host, read_only)

    def _install_evaluate(self) -> None:
        """Put the command on the PATH, too."""
        folder = os.path.join(self._box, "bin")
        os.makedirs(folder, mode=0o755, exist_ok=True)
        command = os.path.join(folder, COMMAND)
        with open(command, "w", encoding="utf-8") as file:
            file.write(launcher(self._python))
        os.chmod(command, 0o755)  # noqa: S103  (a command)
        self._add_folder(BIN_AT, folder, read_only=True)
        super()._install_evaluate()

    def _place(self, at: str, number: int) -> tuple[str, str]:
        host = self.host_path(at) or os.path.join(self._box, f"f{number}")
        if not host.startswith(self._box + "/"):
            raise BadInput(f"{at} lies outside of the session")
        return host, self._box

    def _written(self, file: InputFile, host: str) -> None:
        if file.read_only or os.path.dirname(host) == self._box:
            self._locked_files.append(Bind(host, file.at, file.read_only))


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


def clear_way(host: str, root: str) -> None:
    """Remove what an archive has in the place of our file, and files in place of its folders.

    Links, too: nothing of ours may be written through one. root: stays, with all above it.
    """
    above = root
    for part in os.path.relpath(os.path.dirname(host), root).split("/"):
        above = os.path.join(above, part)
        if os.path.lexists(above) and (os.path.islink(above) or not os.path.isdir(above)):
            os.unlink(above)
    if os.path.isdir(host) and not os.path.islink(host):
        remove_tree(host)
    elif os.path.lexists(host):
        os.unlink(host)


def remove_tree(path: str) -> None:
    import shutil  # noqa: PLC0415  (slow to import, needed after a broken download only)

    if os.path.isdir(path):
        shutil.rmtree(path)
