"""S3 servers on this machine by name: a scripted one, moto's, versitygw, SeaweedFS."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fde_ray.model.objects import S3Settings
from fde_ray.store.objects.s3 import S3Store
from tests.store.objects.fake_s3 import BUCKET, fake_s3

ENVIRON = {"S3_KEY": "AKIATESTTESTTESTTEST", "S3_SECRET": "wJalrXUtnFEMI-test-secret"}
REAL = ("versitygw", *(("seaweedfs",) if os.environ.get("WEED") else ()))
"""Servers that keep every promise: `make test-s3` builds the first, `make test-s3-long` both."""
START_S = 30.0
"""A server on a busy machine takes seconds to import itself."""


def make_settings(endpoint: str, **changes: object) -> S3Settings:
    said = {
        "bucket": BUCKET,
        "endpoint_url": endpoint,
        "access_key_env": "S3_KEY",
        "secret_key_env": "S3_SECRET",
        "retry_for": "20s",
    }
    return S3Settings.model_validate(said | changes)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread or process brings about."""
    for _ in range(int(START_S / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come about")


@contextmanager
def moto_server(folder: Path) -> Iterator[str]:
    """Yield the endpoint of moto's server, a second process, with the bucket made."""
    port = _free_port()
    argv = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _server(argv, folder, port) as endpoint:
        yield endpoint


@contextmanager
def versitygw(folder: Path) -> Iterator[str]:
    """Yield the endpoint of a versitygw on `folder`; VERSITYGW or the PATH says where it is."""
    program = os.environ.get("VERSITYGW") or shutil.which("versitygw")
    assert program, "no versitygw: run `make test-s3`, which builds it"
    data = folder / "versitygw"
    data.mkdir()
    port = _free_port()
    argv = [program, "--port", f"127.0.0.1:{port}", "posix", str(data)]
    keys = {"ROOT_ACCESS_KEY": ENVIRON["S3_KEY"], "ROOT_SECRET_KEY": ENVIRON["S3_SECRET"]}
    with _server(argv, folder, port, keys) as endpoint:
        yield endpoint


@contextmanager
def seaweedfs(folder: Path) -> Iterator[str]:
    """Yield the endpoint of a SeaweedFS on `folder`; WEED says where its program is."""
    data, config = folder / "seaweedfs", folder / "seaweedfs.json"
    data.mkdir()
    keys = {"accessKey": ENVIRON["S3_KEY"], "secretKey": ENVIRON["S3_SECRET"]}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"name": "bench", "credentials": [keys], "actions": actions}
    config.write_text(json.dumps({"identities": [identity]}))
    port = _free_port()
    parts = ("master", "volume", "filer")
    argv = [
        os.environ["WEED"],
        "server",
        f"-dir={data}",
        "-s3",
        f"-s3.port={port}",
        f"-s3.port.grpc={_free_port()}",
        f"-s3.config={config}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        *(f"-{part}.port={_free_port()}" for part in parts),
        *(f"-{part}.port.grpc={_free_port()}" for part in parts),
        "-volume.max=20",
        "-master.volumeSizeLimitMB=64",
    ]
    with _server(argv, folder, port) as endpoint:
        yield endpoint


@contextmanager
def _server(
    argv: list[str], folder: Path, port: int, environ: dict[str, str] | None = None
) -> Iterator[str]:
    log = folder / f"{port}.log"
    with (
        log.open("wb") as sink,
        subprocess.Popen(
            argv, stdout=sink, stderr=sink, env={**os.environ, **(environ or {})}
        ) as process,
    ):
        try:
            _wait_for(port, process, log)
            endpoint = f"http://127.0.0.1:{port}"
            make_bucket(endpoint)
            yield endpoint
        finally:
            process.kill()


def make_bucket(endpoint: str) -> None:
    import boto3

    client = boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=ENVIRON["S3_KEY"],
        aws_secret_access_key=ENVIRON["S3_SECRET"],
    )
    client.create_bucket(Bucket=BUCKET)
    client.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"the server did not start: {log.read_text()[-500:]}")


class Servers:
    """Servers by name, each started when a test first asks for it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._running = folder, ExitStack()
        self._endpoints: dict[str, str] = {}

    def endpoint(self, name: str) -> str:
        if name not in self._endpoints:
            self._endpoints[name] = self._start(name)
            # Held to the end, so that the tests share a connection: making one takes a while.
            holder = S3Store(make_settings(self._endpoints[name]), ENVIRON)
            self._running.callback(holder.close)
        return self._endpoints[name]

    def _start(self, name: str) -> str:
        if name == "fake-s3":
            return self._running.enter_context(fake_s3()).endpoint
        makers = {"moto": moto_server, "versitygw": versitygw, "seaweedfs": seaweedfs}
        return self._running.enter_context(makers[name](self._folder))

    def close(self) -> None:
        self._running.close()
