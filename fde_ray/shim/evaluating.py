"""The evaluator as an extraction route sees it: sends a folder, prints what came back."""

from __future__ import annotations

import json
import os
import sys

from .collecting import OverCap, collect
from .wire import Exchange, Unreachable

CAP_BYTES = 256 << 20
USAGE, NO_ANSWER = 2, 70


def main(argv: list[str]) -> int:
    """Print the evaluator's JSON line and return its exit code; 70 when there was no answer."""
    if len(argv) != 1 or not os.path.isdir(argv[0]):
        print("usage: evaluate OUTPUT_DIR", file=sys.stderr)
        return USAGE
    parts: list[bytes] = []
    try:
        collect(argv[0], lambda _seq, data, _sha: parts.append(data), cap_bytes=CAP_BYTES)
    except OverCap as error:
        print(f"the folder is too large: {error}", file=sys.stderr)
        return USAGE
    address = os.environ.get("FDE_BASE_URL", "")
    headers = {"content-type": "application/gzip"}
    try:
        with Exchange(
            address, "POST", "/v1/evaluate", b"".join(parts), headers, timeout=7200.0
        ) as reply:
            status, data = reply.status, reply.read()
        value = json.loads(data)
        if status >= 400:
            print(f"no evaluation: {value['error']['reason']}", file=sys.stderr)
            return NO_ANSWER
        sys.stdout.write(str(value["stdout"]))
        sys.stderr.write(str(value.get("stderr") or ""))
        return int(value["exit_code"])
    except (Unreachable, ValueError, KeyError, TypeError) as error:
        print(f"no evaluation: {type(error).__name__}: {error}", file=sys.stderr)
        return NO_ANSWER
