"""Requests per CPU second of the run-plane, with ledger and budgets, beside the litellm proxy.

Ways in front of the same scripted upstream, measured in turns: nothing (direct); our run-plane with
ledger, all budgets and rate limits on PostgreSQL (synchronous_commit=on); the same with all off;
the first with calls that litellm translates (Anthropic's dialect); and the litellm proxy from an
environment of its own. CPU is that of the way's own processes; PostgreSQL's stands beside it.
Goal: at least 5 times the proxy's requests per CPU second, all on. A run-plane is one event loop:
what bounds a replica is the CPU of one core, 1 / `cpu_ms_per_request`.

    python -m benchmarks.gateway            everything, an hour
    python -m benchmarks.gateway --quick    three short rounds, little memory load
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.postgresql import running_postgresql

from ._gateway.load import Seen, Target, call_ids, played
from ._gateway.plane import MODEL, Order
from ._gateway.processes import cost, free_port, started, until_it_listens

GOAL_RATIO = 5.0
SESSIONS = 32
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
PROXY_STARTS_WITHIN_S = 120.0
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


class Size(NamedTuple):
    """requests: of one round; where litellm is in the way, `slow_requests`."""

    rounds: int
    requests: int
    slow_requests: int
    memory_requests: int
    clients: int = 32


WHOLE = Size(rounds=5, requests=2000, slow_requests=300, memory_requests=50_000)
QUICK = Size(rounds=3, requests=600, slow_requests=100, memory_requests=2000)


class Way(NamedTuple):
    """pid None: the load goes straight to the upstream."""

    name: str
    target: Target
    pid: int | None
    database_pid: int | None = None


class Round(NamedTuple):
    cpu_s: float
    database_cpu_s: float
    seen: Seen


def proxy_python() -> Path:
    """Return the Python of the proxy's environment, made at first use from its lock."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fde-ray"
    lock = Path(__file__).parents[1] / "locks" / "bench-litellm.txt"
    folder, uv = cache / "bench-litellm", Path(sys.executable).with_name("uv")
    python, stamp = folder / "bin" / "python", folder / "lock.txt"
    if not stamp.is_file() or stamp.read_bytes() != lock.read_bytes():
        _say("making the environment of the litellm proxy ...")
        subprocess.run([uv, "venv", "-q", "--clear", folder], check=True)
        install = [uv, "pip", "install", "-q", "--python", python, "--require-hashes"]
        subprocess.run([*install, "-r", lock], check=True)
        stamp.write_bytes(lock.read_bytes())
    return python


@contextmanager
def upstream(folder: Path) -> Iterator[int]:
    port, log = free_port(), folder / "upstream.log"
    command = [sys.executable, "-m", "benchmarks._gateway.upstream", str(port)]
    with started(command, log) as process:
        until_it_listens(port, process, log, 20)
        yield port


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
            yield Way(name, target, process.pid, database.process.pid)


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


async def one_round(way: Way, requests: int, clients: int, *, stream: bool) -> Round:
    before, database = _cpu(way.pid), _cpu(way.database_pid)
    name_of, target = call_ids(), way.target
    if way.database_pid is not None:
        target = target._replace(
            headers=lambda n: {**way.target.headers(n), "x-fde-call-id": name_of(n)}
        )
    seen = await played(target, requests, clients, stream=stream)
    return Round(_cpu(way.pid) - before, _cpu(way.database_pid) - database, seen)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _cpu(pid: int | None) -> float:
    return 0.0 if pid is None else cost(pid).cpu_s


async def measured(ways: Sequence[Way], size: Size, *, stream: bool) -> dict[str, Any]:
    """Return the medians of rounds that the ways play in turns."""
    rounds: dict[str, list[Round]] = {way.name: [] for way in ways}
    for number in range(size.rounds + 1):
        for way in ways:
            is_slow = way.name in ("litellm_proxy", "run_plane_translated")
            requests = size.slow_requests if is_slow else size.requests
            played_ = await one_round(way, requests, size.clients, stream=stream)
            if number:  # the first one warms up
                rounds[way.name].append(played_)
        _say(f"round {number} of {size.rounds} (stream: {stream})")
    return {name: _summary(of, rounds["direct"]) for name, of in rounds.items()}


def _summary(rounds: Sequence[Round], direct: Sequence[Round]) -> dict[str, Any]:
    def median(values: Iterator[float]) -> float:
        return round(statistics.median(values), 3)

    p50, p99 = (median(one.seen[i] for one in direct) for i in (2, 3))
    told: dict[str, Any] = {
        "requests_per_s": median(one.seen.requests / one.seen.wall_s for one in rounds),
        "p50_ms": median(one.seen.p50_ms for one in rounds),
        "p99_ms": median(one.seen.p99_ms for one in rounds),
    }
    if rounds is direct:
        return told
    told["added_p50_ms"] = round(told["p50_ms"] - p50, 3)
    told["added_p99_ms"] = round(told["p99_ms"] - p99, 3)
    told["cpu_ms_per_request"] = median(one.cpu_s / one.seen.requests * 1000 for one in rounds)
    told["requests_per_cpu_s"] = median(one.seen.requests / one.cpu_s for one in rounds)
    told["cores_busy"] = median(one.cpu_s / one.seen.wall_s for one in rounds)
    if any(one.database_cpu_s for one in rounds):
        told["database_cpu_ms_per_request"] = median(
            one.database_cpu_s / one.seen.requests * 1000 for one in rounds
        )
    return told


async def memory(way: Way, size: Size) -> dict[str, float]:
    """Return the memory of a way before and after many requests, in MiB."""
    assert way.pid is not None
    before = cost(way.pid).rss_mib
    print(
        f"{way.name}: {size.memory_requests} requests for its memory", file=sys.stderr, flush=True
    )
    await one_round(way, size.memory_requests, size.clients, stream=False)
    return {"before_mib": round(before, 1), "after_mib": round(cost(way.pid).rss_mib, 1)}


async def compared(size: Size) -> dict[str, Any]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fde-bench-")))
        port = stack.enter_context(upstream(folder))
        ways = [
            Way("direct", Target(port, CHAT, MODEL, lambda _: {}), None),
            stack.enter_context(run_plane(folder, port, "run_plane")),
            stack.enter_context(run_plane(folder, port, "run_plane_unmetered", metered=False)),
            # Of its own: the SDK alone takes some 200 MiB.
            stack.enter_context(run_plane(folder, port, "run_plane_translated", path=MESSAGES)),
            stack.enter_context(proxy(folder, port)),
        ]
        told = {
            "whole": await measured(ways, size, stream=False),
            "streamed": await measured(ways, size, stream=True),
        }
        ratios = {mode: _ratio(of) for mode, of in told.items()}
        return {
            "benchmark": "gateway",
            "goal_ratio": GOAL_RATIO,
            "ratio": ratios,
            **told,
            "memory_requests": size.memory_requests,
            "memory": {way.name: await memory(way, size) for way in ways if has_memory(way)},
        }


def has_memory(way: Way) -> bool:
    return way.pid is not None and way.target.path == CHAT


def _ratio(ways: dict[str, Any]) -> float:
    ours, theirs = ways["run_plane"], ways["litellm_proxy"]
    return round(float(ours["requests_per_cpu_s"] / theirs["requests_per_cpu_s"]), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three short rounds")
    size = QUICK if parser.parse_args().quick else WHOLE
    # What was started is ended then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(json.dumps(asyncio.run(compared(size))))


if __name__ == "__main__":
    main()
