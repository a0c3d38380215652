"""Programs as a container's command: their sources travel in one argument; no image has them."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fde_ray import shim

_PROGRAMS = Path(__file__).parent / "programs"
_SHIM = Path(shim.__file__).parent
_PACKAGE = f"{__package__}.programs"
ARGUMENT_LIMIT = 128 << 10
"""Of Linux, for one argument of a command."""
_STARTER = """\
import base64, json, sys, types, zlib
told = json.loads(zlib.decompress(base64.b64decode(sys.argv[1])))
def module(name):
    if name not in sys.modules:
        made = sys.modules[name] = types.ModuleType(name)
        made.__path__ = []
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(module(parent), last, made)
    return sys.modules[name]
for name, text in told["modules"]:
    made = module(name)
    made.__package__ = name.rpartition(".")[0]
    exec(compile(text, name, "exec"), made.__dict__)
getattr(sys.modules[told["entry"][0]], told["entry"][1])(**told["arguments"])
"""


def command(entry: str, programs: Iterable[str], **arguments: Any) -> list[str]:
    """Return the command that runs `program.function`, the programs it needs beside it."""
    program, _, function = entry.partition(".")
    names = dict.fromkeys(("syscalls", "harness", "asking", *sorted(programs), program))
    told = {
        "modules": [*_collector(program), *((f"{_PACKAGE}.{n}", _source(n)) for n in names)],
        "entry": [f"{_PACKAGE}.{program}", function],
        "arguments": arguments,
    }
    packed = base64.b64encode(zlib.compress(json.dumps(told).encode(), 9)).decode()
    if len(packed) >= ARGUMENT_LIMIT:
        raise ValueError(f"{entry}: {len(packed)} bytes are too many for an argument")
    return ["python3", "-I", "-S", "-B", "-u", "-c", _STARTER, packed]


def programs_of(calls: Iterable[str]) -> set[str]:
    return {call.partition(".")[0] for call in calls}


def _collector(program: str) -> list[tuple[str, str]]:
    """The stand-in collects with the shim's own code."""
    if program != "standin":
        return []
    return [
        (f"{shim.__name__}.{name}", (_SHIM / f"{name}.py").read_text(encoding="utf-8"))
        for name in ("trees", "collecting")
    ]


def _source(name: str) -> str:
    return (_PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
