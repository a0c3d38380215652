"""Programs of grades, asked for in the run store and run in boxes elsewhere: pods of the roles
`score` and, for what an agent made, `exec`.

Whoever grades puts a row there with its folders in the object store, and waits for the answer; the
grade's driver sees to it that a box is there (`box_keeping`).
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import logging
import os
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from fde_ray.grading.workspace import file_sha256, regular_files
from fde_ray.model.boxes import (
    BOX_ROOT,
    MAX_KEPT_BYTES,
    BoxFolder,
    BoxJob,
    BoxResult,
    box_line,
)
from fde_ray.model.errors import SandboxError, StoreError
from fde_ray.model.failures import FailureKind
from fde_ray.sandbox.records import Completed, Once
from fde_ray.shim.boxes import HOME
from fde_ray.store.objects import ObjectStore, layout
from fde_ray.store.runs import RunStore

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25
"""How long an answer that another process took in may go unseen."""
AWAY_S = 1.0


class BoxScorer:
    """Fits `sandbox.kubernetes.scoring.Scorer`; needs no way to the cluster.

    start_patience_s: how long a program may wait for its box, a node, an image and a lost box
    included.
    """

    def __init__(
        self,
        store: RunStore,
        objects: ObjectStore,
        tenant: str,
        *,
        start_patience_s: float = 1800.0,
    ) -> None:
        self._store, self._objects, self._tenant = store, objects, tenant
        self._start_patience_s = start_patience_s
        self._awaited: set[str] = set()
        self._looking: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def run_once(self, once: Once) -> Completed:
        """Return how the program ended in the box of its owner; SandboxError when there was none,
        or it was lost."""
        if once.owner is None:
            raise _no_box("the program belongs to no grade, so that no box can run it")
        job_id, within_s = uuid.uuid4().hex, once.timeout_s + self._start_patience_s
        job = await self._job(once, once.owner)
        line = box_line(once.owner, "exec" if once.untrusted else "score")
        try:
            await self._store.ask_box(job_id, line, job, within_s)
            return completed_of(await self._answered(job_id, within_s))
        finally:
            await self._forgotten(job_id)

    async def _job(self, once: Once, owner: str) -> BoxJob:
        return BoxJob(
            argv=once.argv,
            env={"HOME": HOME, "TMPDIR": "/tmp"} | dict(once.env),  # noqa: S108
            workdir=once.workdir,
            folders=tuple(
                [await self._folder(once, owner, Path(host), at) for host, at, _ in once.mounts]
            ),
            timeout_s=once.timeout_s,
            memory_bytes=once.memory_bytes,
            file_bytes=once.file_bytes,
            stdout_bytes=min(once.stdout_bytes, MAX_KEPT_BYTES),
            stderr_bytes=min(once.stderr_bytes, MAX_KEPT_BYTES),
            stdin=once.stdin,
        )

    async def _folder(self, once: Once, owner: str, host: Path, at: str) -> BoxFolder:
        if not at.startswith(f"{BOX_ROOT}/"):
            raise _no_box(f"a box has no folder at {at}")
        if (known := once.stored.get(at)) is not None:
            return BoxFolder(at=at, key=known.key, below=known.below)
        name = await asyncio.to_thread(folder_hash, host)
        key = layout.box_key(self._tenant, owner, name)
        # A program is run many times, and may be large.
        if not await self._objects.exists(key):
            await self._objects.create(key, await asyncio.to_thread(packed_folder, host))
        return BoxFolder(at=at, key=key)

    async def _answered(self, job_id: str, within_s: float) -> BoxResult:
        self._awaited.add(job_id)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="answers of boxes")
        try:
            async with asyncio.timeout(within_s):
                with self._store.changed.watch(("job", job_id)) as news:
                    while (result := await self._result(job_id)) is None:
                        await news.wait()
                        news.clear()
                    return result
        except TimeoutError as error:
            raise _no_box(f"no box has answered within {within_s:.0f} s") from error
        finally:
            self._awaited.discard(job_id)

    async def _result(self, job_id: str) -> BoxResult | None:
        """As the store has it; one that is away for a while costs no program that goes on."""
        while True:
            try:
                return await self._store.job_result(job_id)
            except StoreError as error:
                log.warning("answer_not_read", extra={"reason": error.detail})
                await asyncio.sleep(AWAY_S)

    async def _look(self) -> None:
        """See answers that other processes took in, as long as anybody waits: one look for all."""
        while self._awaited:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                ended = await self._store.ended_jobs(frozenset(self._awaited))
            except StoreError as error:
                log.warning("answers_not_seen", extra={"reason": error.detail})
                continue
            self._store.changed.notify(("job", job_id) for job_id in ended)

    async def _forgotten(self, job_id: str) -> None:
        try:
            await self._store.forget_job(job_id)
        except StoreError as error:
            # It is forgotten when its time is over.
            log.warning("job_left", extra={"reason": error.detail})


def completed_of(result: BoxResult) -> Completed:
    if result.reason == "lost":
        raise _no_box(result.detail)
    code = result.exit_code if result.reason == "exit" else None
    return Completed(code, result.stdout, result.stderr, result.reason, result.duration_s)


def packed_folder(folder: Path) -> bytes:
    """Return the regular files of a folder as tar+gzip; equal contents give equal bytes."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0) as plain,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, path in _files(folder):
            info = tarfile.TarInfo(name)
            info.size, info.mode = os.stat(path, follow_symlinks=False).st_size, _mode(path)
            with open(path, "rb") as content:
                tar.addfile(info, content)
    return packed.getvalue()


def folder_hash(folder: Path) -> str:
    """Return a name for all that `packed_folder` packs."""
    whole = hashlib.sha256()
    for name, path in _files(folder):
        facts = f"{_mode(path):o} {file_sha256(path)} ".encode()
        whole.update(facts + os.fsencode(name) + b"\0")
    return whole.hexdigest()


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    names = sorted(os.fsdecode(relative) for relative, _ in regular_files(folder))
    for name in names:
        if "__pycache__" not in name.split("/"):
            yield name, folder / name


def _mode(path: Path) -> int:
    return 0o755 if os.stat(path, follow_symlinks=False).st_mode & 0o100 else 0o644


def _no_box(detail: str) -> SandboxError:
    return SandboxError(detail, FailureKind.GRADER_SANDBOX)
