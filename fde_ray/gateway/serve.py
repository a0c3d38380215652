"""Serves an app on a UNIX socket or a port inside the running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from fde_ray.model.errors import UserError

MAX_SOCKET_PATH = 100
"""Linux takes 107 bytes; some room is left for temporary names."""
GRACE_S = 3
BACKLOG = 2048


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the process that we are a task of."""
        yield


@asynccontextmanager
async def served_on_socket(app: FastAPI, path: Path) -> AsyncIterator[None]:
    """Serve inside the block on a socket file of mode 0600, removed at the end.

    UserError if another process serves there; the file of a dead process is replaced.
    """
    listener = unix_listener(path)
    identity = _identity(path)
    try:
        async with _served(app, listener):
            yield
    finally:
        _remove_if_ours(path, identity)


@asynccontextmanager
async def served_on_port(app: FastAPI, host: str, port: int = 0) -> AsyncIterator[int]:
    """Serve inside the block on TCP; yields the port (0 asks for a free one)."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    bound = int(listener.getsockname()[1])
    async with _served(app, listener):
        yield bound


def unix_listener(path: Path) -> socket.socket:
    """Return a bound socket at `path`; see `served_on_socket`."""
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise UserError(f"the socket path {path} is too long; choose a shorter state folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Bound under another name first: nobody may connect before the mode is set.
    draft = path.with_name(f"{path.name}.{os.getpid() % 10**5}")
    try:
        draft.unlink(missing_ok=True)
        listener.bind(str(draft))
        draft.chmod(0o600)
        # Listening before it has its name, so that it never looks like a dead process's file.
        listener.listen(BACKLOG)
        draft.rename(path)
    except OSError as error:
        listener.close()
        raise UserError(f"cannot listen on {path}: {error.strerror}") from error
    return listener


def _clear_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UserError(f"{path} is in the way and is no socket; move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass  # it lives and is busy
    raise UserError(f"another process serves {path}; stop it or choose another state folder")


def _remove_if_ours(path: Path, identity: tuple[int, int] | None) -> None:
    if _identity(path) == identity:
        path.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int] | None:
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat()
        return found.st_dev, found.st_ino
    return None


@asynccontextmanager
async def _served(app: FastAPI, listener: socket.socket) -> AsyncIterator[None]:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        loop="none",
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        backlog=BACKLOG,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="plane server")
    try:
        while not server.started:
            if task.done():
                task.result()
                raise UserError("the plane's server did not start")
            await asyncio.sleep(0.005)
        yield
    finally:
        server.should_exit = True
        await task
        listener.close()
