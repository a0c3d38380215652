"""Case material in the form that sandboxes and graders take: archives by key, staged folders."""

from __future__ import annotations

import asyncio
import io
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fde_ray.cases.records import Case
from fde_ray.cases.staging import Archive, extract_archive, sealed_archive, visible_archive
from fde_ray.grading.scoring import ScoringCase, scoring_case
from fde_ray.store.objects import ObjectStore, layout


class CaseKeys(NamedTuple):
    """Object keys of the archives that a sandbox may get; the sealed one has none here."""

    visible: str
    extract: str


class Material:
    """Stores the archives of each case once, and stages its sealed folder for the scorer.

    The staged folders lie below `scratch`, which no sandbox of an agent or extractor mounts.
    """

    def __init__(
        self, cases: Mapping[str, Case], objects: ObjectStore, tenant: str, scratch: Path
    ) -> None:
        self._cases, self._objects, self._tenant = cases, objects, tenant
        self._scratch = scratch
        self._keys: dict[str, CaseKeys] = {}
        self._scoring: dict[str, ScoringCase] = {}
        # One staging per case, however many runs begin with it at once.
        self._lock = asyncio.Lock()

    async def keys(self, case_id: str) -> CaseKeys:
        async with self._lock:
            if case_id not in self._keys:
                self._keys[case_id] = await self._stored(self._cases[case_id])
            return self._keys[case_id]

    async def scoring(self, case_id: str) -> ScoringCase:
        """Return where the case's folders are staged here, and the keys that `keys` stores them
        under."""
        async with self._lock:
            if case_id not in self._scoring:
                case, tenant = self._cases[case_id], self._tenant
                staged = await asyncio.to_thread(_staged, case, self._scratch, tenant)
                self._scoring[case_id] = staged
            return self._scoring[case_id]

    async def _stored(self, case: Case) -> CaseKeys:
        keys = {}
        for packed in await asyncio.to_thread(packed_case, case, self._tenant):
            await self._objects.create(packed.key, packed.archive.content)
            keys[packed.kind] = packed.key
        return CaseKeys(visible=keys["visible"], extract=keys["extract"])


class PackedArchive(NamedTuple):
    kind: layout.ArchiveKind
    key: str
    archive: Archive


def packed_case(case: Case, tenant: str) -> list[PackedArchive]:
    """Return the three archives of a case with the keys of their content."""
    archives: dict[layout.ArchiveKind, Archive] = {
        "sealed": sealed_archive(case),
        "visible": visible_archive(case),
        "extract": extract_archive(case),
    }
    return [
        PackedArchive(kind, layout.case_key(tenant, kind, archive.sha256), archive)
        for kind, archive in archives.items()
    ]


def _staged(case: Case, scratch: Path, tenant: str) -> ScoringCase:
    sealed, visible = sealed_archive(case), visible_archive(case)
    return scoring_case(
        case,
        sealed_dir=_unpacked(sealed, scratch / "cases" / sealed.sha256),
        data_dir=_unpacked(visible, scratch / "cases" / visible.sha256) / "data",
        sealed_key=layout.case_key(tenant, "sealed", sealed.sha256),
        visible_key=layout.case_key(tenant, "visible", visible.sha256),
    )


def _unpacked(archive: Archive, folder: Path) -> Path:
    """Unpack our own archive; a folder that is there was unpacked whole."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Another driver on this machine may be at it, too: each has a draft of its own.
        draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=folder.name, suffix=".draft"))
        try:
            _unpack(archive, draft)
            draft.chmod(0o755)
            draft.rename(folder)
        except OSError:
            if not folder.exists():
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return folder


def _unpack(archive: Archive, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive.content), mode="r:gz") as tar:
        for member in tar.getmembers():
            content = tar.extractfile(member)
            assert content is not None  # staging packs plain files only
            target = folder / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.read())
