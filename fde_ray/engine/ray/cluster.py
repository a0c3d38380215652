"""A Ray of our own on this machine, or the one that RAY_ADDRESS names."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fde_ray.model.errors import UserError, shortened

from .leftovers import alone, is_joined, ray_folder, reap, record, temp_folder
from .starting import Starting

log = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 80 * 2**20
REACHED_WITHIN_S = 10.0


@contextmanager
def cluster(home: Path, environ: Mapping[str, str], starting: Starting) -> Iterator[None]:
    """Be connected to a Ray inside the block.

    UserError when it cannot be started or reached. Call it in the main thread: a Ray that a thread
    started dies with the thread.
    """
    folder = ray_folder(home)
    with alone(folder):
        starting.is_ours = True
        reap(folder)
        with _joined(folder, environ["RAY_ADDRESS"]) if is_joined(environ) else _local(folder):
            yield


@contextmanager
def _local(folder: Path) -> Iterator[None]:
    temp = temp_folder(folder)
    options = {
        "address": "local",
        "num_cpus": os.cpu_count() or 1,
        "include_dashboard": False,
        "object_store_memory": OBJECT_STORE_BYTES,
        "_temp_dir": str(temp),
    }
    hint = f"Ray does not start here; its logs are in {temp}, and --engine inline needs none"
    try:
        with _connected(options, folder, hint):
            record(folder, _node_pids(), temp)
            yield
        reap(folder)
    except UserError:
        raise  # the logs stay
    except BaseException:
        reap(folder)
        raise


@contextmanager
def _joined(folder: Path, address: str) -> Iterator[None]:
    hint = f"cannot join the Ray at {address}; check RAY_ADDRESS and its token, or unset it"
    if address != "auto":
        check_reachable(address, hint)
    with _connected({"address": address}, folder, hint):
        yield


def check_reachable(address: str, hint: str) -> None:
    """UserError unless somebody listens at `host:port`: Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit() or int(port) > 65535:
        raise UserError(f"RAY_ADDRESS is {address!r}; it takes host:port of the head, or auto")
    try:
        socket.create_connection((host, int(port)), REACHED_WITHIN_S).close()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UserError(f"{hint} ({shortened(reason, 200)})") from error


@contextmanager
def _connected(options: dict[str, Any], folder: Path, hint: str) -> Iterator[None]:
    import ray

    log_file = folder / "ray.log"
    quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with _stderr_to(log_file):
            ray.init(**options, **quiet)
    except Exception as error:
        log.exception("ray_not_started")
        reason = shortened(str(error).strip().partition("\n")[0], 200)
        raise UserError(f"{hint} ({type(error).__name__}: {reason})") from error
    finally:
        signal.signal(signal.SIGTERM, handler)  # Ray's own ends the process without a word
    # A thread of Ray prints what befalls actors.
    with open(log_file, "a", encoding="utf-8") as said, contextlib.redirect_stdout(said):
        try:
            yield
        finally:
            with _stderr_to(log_file):
                ray.shutdown()


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Keep what libraries below Python say off the terminal inside the block."""
    with open(path, "ab") as file:
        sys.stderr.flush()
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(before, 2)
            os.close(before)


def _node_pids() -> list[int]:
    import ray

    started = ray._private.worker._global_node.all_processes
    return [info.process.pid for infos in started.values() for info in infos]
