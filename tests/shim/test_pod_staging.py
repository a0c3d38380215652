"""The volumes of a pod are filled where they are, and spared where others hang in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fde_ray.shim.inputs import BadInput, read_inputs
from fde_ray.shim.plane import Plane
from fde_ray.shim.pod_site import PodMount
from fde_ray.shim.pod_staging import PodStaging
from fde_ray.shim.unpacking import BadArchive
from tests.sandbox.fake_plane import SECRET, FakePlane


def staging(fake: FakePlane, *places: str) -> PodStaging:
    folder = fake.socket.parent
    mounts = []
    for number, at in enumerate(places):
        (folder / f"m{number}").mkdir()
        mounts.append(PodMount(str(folder / f"m{number}"), at))
    return PodStaging(tuple(mounts), read_inputs(fake.inputs))


def opened(fake: FakePlane) -> Plane:
    plane = Plane(f"unix:{fake.socket}", fake.inputs["subject"], SECRET)
    plane.open("solve")
    return plane


def test_second_try_clears_what_the_first_left_but_no_mount_point(tmp_path: Path) -> None:
    with FakePlane(tmp_path).running() as fake:
        pod = staging(fake, "/workspace", "/workspace/deep/data")
        plane, whole = opened(fake), fake.archives["visible"]
        fake.archives["visible"] = whole[: len(whole) // 2]
        with pytest.raises(BadArchive):
            pod.prepare(plane)
        (tmp_path / "m0" / "left").mkdir()
        (tmp_path / "m0" / "left" / "over").touch()
        (tmp_path / "m0" / "deep" / "data").mkdir(parents=True)  # as a runtime makes it
        fake.archives["visible"] = whole
        pod.prepare(plane)
        pod.prepare(plane)
    found = {p.relative_to(tmp_path / "m0").as_posix() for p in (tmp_path / "m0").rglob("*")}
    assert found == {"instruction.md", "data", "data/a.csv", "deep", "deep/data"}
    assert pod.collected == str(tmp_path / "m0")


def test_file_is_written_into_a_volume_with_the_mode_that_it_needs(tmp_path: Path) -> None:
    with FakePlane(tmp_path).running() as fake:
        fake.inputs["files"] = [
            {"at": "/workspace/new/note.md", "text": "read"},
            {"at": "/workspace/data/a.csv", "text": "mine", "read_only": False},
        ]
        pod = staging(fake, "/workspace")
        pod.prepare(opened(fake))
    note, csv = tmp_path / "m0" / "new" / "note.md", tmp_path / "m0" / "data" / "a.csv"
    assert (note.read_text(), note.stat().st_mode & 0o777) == ("read", 0o444)
    assert (csv.read_text(), csv.stat().st_mode & 0o777) == ("mine", 0o644)


@pytest.mark.parametrize(
    "changes",
    [
        {"workdir": "/elsewhere"},
        {"mounts": [{"archive": "visible", "at": "/other"}]},
        {"files": [{"at": "/lone", "text": ""}]},
        {"files": [{"at": "/workspace", "text": ""}]},
    ],
    ids=["workdir", "mount", "file", "mount-point"],
)
def test_what_lies_in_no_volume_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with FakePlane(tmp_path).running() as fake:
        fake.inputs |= changes
        pod = staging(fake, "/workspace")
        with pytest.raises(BadInput, match="volume"):
            pod.prepare(opened(fake))
