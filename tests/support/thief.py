"""A program that looks for what it must not find, and tells what it found as its answer."""

from __future__ import annotations

from pathlib import Path

from tests.support.executable_case import CANARY

_TEXT = """
import json, os, socket, sys

given = sys.stdin.read()
sealed, canary, port = {sealed!r}, {canary!r}, {port!r}
found = {{"given": given, "opened": [], "holding": [], "wrote": [], "network": []}}
for place in ("/grader/sealed", "/grader/data", "/grader/submission", "/grader/answers", sealed):
    if os.path.exists(place):
        found["opened"].append(place)
found["grader"] = os.listdir("/grader")
found["links"] = [name for _, name in socket.if_nameindex()]
for root in ("/grader", "/tmp", "/home", "/proc/1/root/grader", "/proc/1/cwd", "/var", "/root"):
    for base, folders, names in os.walk(root):
        for name in names:
            path = os.path.join(base, name)
            try:
                with open(path, "rb") as stream:
                    text = stream.read(1 << 20)
            except OSError:
                continue
            if (canary.encode() in text or b'"demand"' in text) and name != "policy.py":
                found["holding"].append(path)
for place in ("/grader/program/left.txt", "/grader/left.txt", "/tmp/left.txt", "left.txt"):
    if os.path.exists(place):
        found["holding"].append(place)
    try:
        with open(place, "w") as stream:
            stream.write(given)
        found["wrote"].append(place)
    except OSError:
        pass
for address in (("127.0.0.1", port), ("1.1.1.1", 53), ("169.254.169.254", 80)):
    try:
        socket.create_connection(address, timeout=0.2)
        found["network"].append(address)
    except OSError:
        pass
found["processes"] = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
found["variables"] = sorted(os.environ)
print(json.dumps(found))
"""


def thief(sealed: Path, port: int) -> str:
    """Return the program. sealed: where this machine keeps the truth; port: of a server on it."""
    return _TEXT.format(sealed=str(sealed), canary=CANARY, port=port)
