"""The ways a model call can go in `benchmarks.gateway`, each in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.postgresql import running_postgresql

from .load import Target, call_ids
from .plane import MODEL, Order
from .processes import free_port, started, until_it_listens

SESSIONS = 32
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
PROXY_STARTS_WITHIN_S = 120.0
DURABLE = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "autovacuum": "on",
    "shared_buffers": "128MB",
}
"""What the tests' server leaves out, and a real one has."""


class Way(NamedTuple):
    """pid None: the load goes straight to the upstream."""

    name: str
    target: Target
    pid: int | None
    database_pid: int | None = None
    is_translated: bool = False
    """Ours, with calls that litellm puts into the words of the upstream."""


def direct(upstream_port: int) -> Way:
    return Way("direct", Target(upstream_port, CHAT, MODEL, lambda _: {}), None)


class Upstream(NamedTuple):
    port: int
    pid: int


@contextmanager
def upstream(folder: Path) -> Iterator[Upstream]:
    port, log = free_port(), folder / "upstream.log"
    command = [sys.executable, "-m", "benchmarks._gateway.upstream", str(port)]
    with started(command, log) as process:
        until_it_listens(port, process, log, 20)
        yield Upstream(port, process.pid)


@contextmanager
def run_plane(
    folder: Path, upstream_port: int, name: str, *, metered: bool = True, path: str = CHAT
) -> Iterator[Way]:
    place, port = folder / name, free_port()
    place.mkdir()
    with running_postgresql(DURABLE) as database:
        order = Order(
            port=port,
            upstream=f"http://127.0.0.1:{upstream_port}/v1",
            store=database.url(),
            folder=str(place),
            sessions=SESSIONS,
            metered=metered,
            tokens=str(place / "tokens.json"),
        )
        (place / "order.json").write_text(order.model_dump_json())
        command = [sys.executable, "-m", "benchmarks._gateway.plane", str(place / "order.json")]
        with started(command, place / "log") as process:
            until_it_listens(port, process, place / "log", 60)
            tokens = json.loads((place / "tokens.json").read_text())
            name_of = call_ids()

            def headers(number: int) -> dict[str, str]:
                token = tokens[number % len(tokens)]
                return {"authorization": f"Bearer {token}", "x-fde-call-id": name_of(number)}

            target = Target(port, path, MODEL, headers)
            yield Way(name, target, process.pid, database.process.pid, is_translated=path != CHAT)


@contextmanager
def proxy(folder: Path, upstream_port: int) -> Iterator[Way]:
    port, log, config = free_port(), folder / "proxy.log", folder / "proxy.yaml"
    to = f"{{model: openai/scripted-1, api_base: 'http://127.0.0.1:{upstream_port}/v1'"
    config.write_text(
        f"model_list:\n  - model_name: {MODEL}\n    litellm_params: {to}, api_key: none}}\n"
        "litellm_settings: {telemetry: false, num_retries: 0}\n"
        "general_settings: {master_key: sk-bench}\n"
    )
    program = proxy_python().with_name("litellm")
    command = [str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    environ = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    environ.pop("PYTHONPATH", None)
    with started([*command, "--num_workers", "1"], log, environ) as process:
        until_it_listens(port, process, log, PROXY_STARTS_WITHIN_S)
        target = Target(port, CHAT, MODEL, lambda _: {"authorization": "Bearer sk-bench"})
        yield Way("litellm_proxy", target, process.pid)


def proxy_python() -> Path:
    """Return the Python of the proxy's environment, made at first use from its lock."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fde-ray"
    lock = Path(__file__).parents[2] / "locks" / "bench-litellm.txt"
    folder, uv = cache / "bench-litellm", Path(sys.executable).with_name("uv")
    python, stamp = folder / "bin" / "python", folder / "lock.txt"
    if not stamp.is_file() or stamp.read_bytes() != lock.read_bytes():
        print("making the environment of the litellm proxy ...", file=sys.stderr, flush=True)
        subprocess.run([uv, "venv", "-q", "--clear", folder], check=True)
        install = [str(uv), "pip", "install", "-q", "--python", str(python), "--require-hashes"]
        subprocess.run([*install, "-r", str(lock)], check=True)
        stamp.write_bytes(lock.read_bytes())
    return python
