"""Serves a GGUF file on a free loopback port until its standard input closes.

The last line that it prints before it serves is `serving URL`. Run it with the Python that has
xllamacpp: `python server.py MODEL TEMPLATE`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import xllamacpp

CONTEXT = 8192
REPLY_TOKENS = 32
"""Judges and extractors set no limit, and this model never stops by itself."""


def parameters(model: str, template: str) -> xllamacpp.CommonParams:
    """One slot and one thread: on shared cores, threads that wait for each other crawl."""
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {"gemma"}
    params.chat_template = template
    params.n_ctx = CONTEXT
    params.n_parallel = 1
    params.n_predict = REPLY_TOKENS
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads = 1
        threads.poll = 0
    params.verbosity = 1
    return params


def main(model: str, template: str) -> None:
    server = xllamacpp.Server(parameters(model, Path(template).read_text()))
    print("serving", server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
