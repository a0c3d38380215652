"""Serves an app on a UNIX socket or a port inside the running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from fde_ray.model.errors import UserError

from .reception import BoundedRequests

GRACE_S = 3
BACKLOG = 2048


class _OrderlyEnd(logging.Filter):
    """A long poll that is open when the server ends is cut, and that is no error."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[0] if record.exc_info else None
        is_cut = error is not None and issubclass(error, asyncio.CancelledError)
        return not is_cut and "graceful shutdown" not in record.getMessage()


_ORDERLY_END = _OrderlyEnd()


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the process that we are a task of."""
        yield


@asynccontextmanager
async def served_on_socket(
    app: FastAPI, path: Path, *, grace_s: float | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[None]:
    """Serve inside the block on a socket file of mode 0600, removed at the end.

    grace_s: how long requests that are open at the end may take; None = seconds.
    UserError if another process serves there; the file of a dead process is replaced.
    """
    listener = unix_listener(path)
    identity = _identity(path)
    try:
        async with _served(app, listener, grace_s, tls):
            yield
    finally:
        _remove_if_ours(path, identity)


@asynccontextmanager
async def served_at(
    app: FastAPI,
    address: str,
    *,
    grace_s: float | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[str]:
    """Serve inside the block on `host:port` or `unix:/path`; yields what was bound."""
    if address.startswith("unix:"):
        path = Path(address.removeprefix("unix:"))
        async with served_on_socket(app, path, grace_s=grace_s, tls=tls):
            yield f"unix:{path}"
        return
    host, port = host_and_port(address)
    async with served_on_port(app, host, port, grace_s=grace_s, tls=tls) as bound:
        yield f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"


def host_and_port(address: str) -> tuple[str, int]:
    """Return both of `host:port`; `[::1]:80` is IPv6. UserError for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UserError(f"{address!r} is no place to listen on; write host:port or unix:/path")
    return host.removeprefix("[").removesuffix("]"), int(port)


@asynccontextmanager
async def served_on_port(
    app: FastAPI,
    host: str,
    port: int = 0,
    *,
    grace_s: float | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Serve inside the block on TCP; yields the port (0 asks for a free one)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        where = f"{host}:{port}"
        raise UserError(f"cannot listen on {where}: {error.strerror or error}") from error
    bound = int(listener.getsockname()[1])
    async with _served(app, listener, grace_s, tls):
        yield bound


def unix_listener(path: Path) -> socket.socket:
    """Return a listening socket at `path`, which may be longer than the kernel's 107 bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        # A name through the descriptor is short whatever the folder is called.
        short = Path(f"/proc/self/fd/{folder}") / path.name
        _clear_stale(short, path)
        return _bound(short, path)
    finally:
        os.close(folder)


def _bound(short: Path, path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Bound under another name first: nobody may connect before the mode is set, and a socket that
    # does not listen yet would look like a dead process's file.
    draft = short.with_name(f".{os.getpid()}.{path.name}")
    try:
        draft.unlink(missing_ok=True)
        listener.bind(str(draft))
        draft.chmod(0o600)
        listener.listen(BACKLOG)
        draft.rename(short)
    except OSError as error:
        listener.close()
        raise UserError(f"cannot listen on {path}: {error.strerror or error}") from error
    return listener


def _clear_stale(short: Path, path: Path) -> None:
    try:
        mode = short.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"cannot listen on {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise UserError(f"{path} is in the way and is no socket; move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        try:
            probe.connect(str(short))
        except (ConnectionRefusedError, FileNotFoundError):
            short.unlink(missing_ok=True)
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
async def _served(
    app: FastAPI, listener: socket.socket, grace_s: float | None, tls: ssl.SSLContext | None
) -> AsyncIterator[None]:
    config = uvicorn.Config(
        app,
        http=BoundedRequests,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        loop="none",
        server_header=False,
        timeout_graceful_shutdown=GRACE_S if grace_s is None else round(grace_s),
        backlog=BACKLOG,
        ssl_context_factory=None if tls is None else lambda _config, _default: tls,
    )
    server = _Server(config)
    logging.getLogger("uvicorn.error").addFilter(_ORDERLY_END)
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
