"""The evaluator as an extraction route sees it: sends a folder, prints what came back.

`launcher` is the command of that name inside a sandbox. A Python file, so that it also runs as
`python3 evaluate`; of the evaluator's own options only the output folder means anything here.
"""

from __future__ import annotations

import json
import os
import sys

from .collecting import OverCap, collect
from .wire import Exchange, Unreachable

CAP_BYTES = 256 << 20
USAGE, NO_ANSWER = 2, 70
COMMAND = "evaluate"
_PASSED_OVER = ("--data-dir", "--sealed-dir")


def launcher(python: str) -> str:
    """Return the text of the command. python: the interpreter, as seen inside."""
    return (
        f"#!{python}\n"
        "import os, sys\n"
        f'words = [{python!r}, "-I", "-S", "-B", os.environ["FDE_SHIM"], "{COMMAND}"]\n'
        "os.execv(words[0], words + sys.argv[1:])\n"
    )


def output_folder(argv: list[str]) -> str | None:
    """Return the folder that the arguments name: alone, or as `--submission-dir`."""
    folders: list[str] = []
    words = iter(argv)
    for word in words:
        name, is_joined, value = word.partition("=")
        if not name.startswith("--"):
            folders.append(word)
            continue
        value = value if is_joined else next(words, "")
        if name == "--submission-dir":
            folders.append(value)
        elif name not in _PASSED_OVER:
            return None
    return folders[0] if len(folders) == 1 else None


def main(argv: list[str]) -> int:
    """Print the evaluator's JSON line and return its exit code; 70 when there was no answer."""
    folder = output_folder(argv)
    if folder is None or not os.path.isdir(folder):
        print("usage: evaluate [--submission-dir] OUTPUT_DIR", file=sys.stderr)
        return USAGE
    parts: list[bytes] = []
    try:
        collect(folder, lambda _seq, data, _sha: parts.append(data), cap_bytes=CAP_BYTES)
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
