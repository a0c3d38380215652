"""A stand-in for the shim: it holds a secret, keeps the gate, and then does one thing.

As the shim does it lets no agent start before the fence is shut, answers the kill switch, takes one
control connection, and alone has the private volume. `then` says what follows the attempts: `end`,
`collect` (with the shim's own collector) or `kill` (by the switch, to see who survives).
"""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import os
import socket
import sys
import tarfile
import threading
import time
from typing import Any

Facts = dict[str, Any]
_CONNECT_S = 1.0
_DEATH_S = 20.0
_QUIET_S = 2.0


class Health(http.server.BaseHTTPRequestHandler):
    """The kill switch: 200 while the agent may live. `asked_at` is when a kubelet last asked."""

    path_wanted = "/"
    is_on = True
    asked_at = 0.0

    def do_GET(self) -> None:
        is_known = self.path == Health.path_wanted
        if is_known:
            Health.asked_at = time.monotonic()
        self.send_response(404 if not is_known else 200 if Health.is_on else 503)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


def main(**options: Any) -> None:
    config = json.loads(os.environ["FDE_SHIM_CONFIG"])
    pod = config["pod"]
    for name, text in (("secret", config["secret"]), ("sealed", options["sealed"])):
        with open(os.path.join(config["dir"], name), "w", encoding="ascii") as file:
            file.write(text)
    Health.path_wanted = pod["health_path"]
    server = Server(("", pod["health_port"]), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    say("gate", **gate(config["plane"], pod["gate"]))
    with socket.create_server(("127.0.0.1", pod["control_port"])) as listener:
        control, _ = listener.accept()
    control.sendall(b"start\n")
    is_done = heard(control, options["limit_s"])
    say("shim", outlived=True, agent="done" if is_done else "gone")
    if options["then"] == "collect":
        collected(options, pod["mounts"][0]["dir"])
    if options["then"] == "kill":
        say("killed", **killed(control, pod["mounts"][0]["dir"]))
    control.close()


def say(kind: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"kind": kind, **facts}) + "\n")
    sys.stdout.flush()


def gate(plane: str, rules: Facts) -> Facts:
    """Return how long it took until the fence was shut and the plane was to be reached."""
    began = time.monotonic()
    allowed = address(plane.rpartition("//")[2])
    forbidden = [address(each) for each in rules["forbidden"]]
    good = 0
    while good < rules["rounds"]:
        if time.monotonic() - began > rules["limit_s"]:
            say("gate", shut=False, open=[each for each in forbidden if connects(each)])
            raise SystemExit("the gate did not shut in time")
        round_began = time.monotonic()
        is_good = connects(allowed) and not any(connects(each) for each in forbidden)
        good = good + 1 if is_good else 0
        time.sleep(max(rules["over_s"] / rules["rounds"] - (time.monotonic() - round_began), 0.2))
    return {"shut": True, "took_s": round(time.monotonic() - began, 1)}


def address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def connects(where: tuple[str, int]) -> bool:
    try:
        socket.create_connection(where, timeout=_CONNECT_S).close()
    except OSError:
        return False
    return True


def heard(control: socket.socket, limit_s: float) -> bool:
    """Return whether the agent said that it is done; False when it is gone."""
    control.settimeout(limit_s)
    try:
        return control.recv(16).startswith(b"done")
    except OSError:
        return False


# --- the kill switch


def killed(control: socket.socket, workspace: str) -> Facts:
    """Turn the switch, wait for the agent's death, and look who still writes after it."""
    began = time.monotonic()
    Health.is_on = False
    control.settimeout(_DEATH_S)
    closed = True
    try:
        closed = control.recv(1) == b""
    except ConnectionError:
        pass
    except OSError:
        closed = False
    # The kubelet asks for as long as the container lives; what it asks is not known to the agent.
    while time.monotonic() - Health.asked_at < 3 and time.monotonic() - began < _DEATH_S:
        time.sleep(0.1)
    took_s = time.monotonic() - began
    before = beats(workspace)
    time.sleep(_QUIET_S)
    after = beats(workspace)
    return {
        "closed": closed,
        "took_s": round(took_s, 1),
        "alive": sorted(name for name in after if after[name] != before.get(name)),
        "seen": sorted(after),
    }


def beats(workspace: str) -> dict[str, bytes]:
    found = {}
    for name in os.listdir(workspace):
        if name.endswith(".beat"):
            with contextlib.suppress(OSError), open(os.path.join(workspace, name), "rb") as file:
                found[name.removesuffix(".beat")] = file.read(64)
    return found


# --- collection


def collected(options: Facts, workspace: str) -> None:
    """Collect as the shim does, and tell what came out for each trap."""
    from fde_ray.shim.collecting import OverCap, collect  # noqa: PLC0415

    stream = io.BytesIO()
    began = time.monotonic()
    try:
        manifest = collect(
            workspace, lambda _, data, __: _discard(stream.write(data)),
            cap_bytes=options["cap_bytes"], mend=True,
        )  # fmt: skip
    except OverCap as error:
        say("over_cap", detail=str(error), took_s=round(time.monotonic() - began, 1))
        return
    stream.seek(0)
    tell(options, stream, list(manifest.skipped))


def _discard(_: int) -> None:
    return None


def tell(options: Facts, stream: io.BytesIO, skipped: list[str]) -> None:
    """Print a line for each trap: kinds and modes of its members, and words it should not hold."""
    found: dict[str, Facts] = {
        name: {"members": 0, "kinds": [], "modes": [], "bad_names": 0, "words": [], "plain": False}
        for name in options["traps"]
    }
    with tarfile.open(fileobj=stream, mode="r:gz") as archive:
        for member in archive:
            head, _, rest = member.name.partition("/")
            facts = found.get(head)
            if facts is None:
                continue
            data = _content(archive, member)
            facts["members"] += 1
            facts["kinds"] = sorted({*facts["kinds"], member.type.decode()})
            facts["modes"] = sorted({*facts["modes"], oct(member.mode)})
            parts = member.name.split("/")
            facts["bad_names"] += member.name.startswith("/") or ".." in parts
            facts["words"] += [w for w in options["words"] if w.encode() in data]
            facts["plain"] = facts["plain"] or (rest == "plain.txt" and b"harmless" in data)
    for name, facts in found.items():
        mine = [each for each in skipped if each.startswith(f"{name}/")]
        say("trap", id=name, skipped=len(mine), example=mine[:1], **facts)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member) if member.isreg() else None
    return file.read() if file is not None else b""
