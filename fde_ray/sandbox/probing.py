"""Finds a sandbox runtime that works here, by looking at what really ran inside."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from fde_ray.model.errors import UserError, shortened
from fde_ray.shim.boxes import Box, Runtime, bubblewrap_argv, gvisor_bundle

INSTALL = "no sandbox works on this machine; install one with: sudo apt-get install -y bubblewrap"
SWITCHED_OFF = "user namespaces are switched off here"
ALLOW = (
    "no sandbox works on this machine; allow user namespaces with: sudo sysctl -w "
    "kernel.apparmor_restrict_unprivileged_userns=0 (in a container: start it with "
    "--security-opt seccomp=unconfined --security-opt systempaths=unconfined)"
)
TIMEOUT_S = 30
_SCRIPT = """
import json, os, socket
print(json.dumps({
    "uid": os.getuid(), "pid": os.getpid(), "names": [n for _, n in socket.if_nameindex()],
    "kernel": open("/proc/version").read(), "home": os.listdir("/home"),
    "root_is_locked": not os.access("/", os.W_OK), "env": sorted(os.environ),
}))
"""


def prepare_etc(home: Path) -> Path:
    """Return a folder with the /etc files of every box."""
    etc = home / "etc"
    etc.mkdir(parents=True, exist_ok=True)
    files = {
        "passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\n"
        "agent:x:1000:1000:agent:/home/agent:/bin/bash\n",
        "group": "root:x:0:\nagent:x:1000:\n",
        "hosts": "127.0.0.1 localhost sandbox\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "hostname": "sandbox\n",
    }
    for name, text in files.items():
        if not (etc / name).exists():
            (etc / name).write_text(text, encoding="ascii")
    return etc


def base_runtime(home: Path, agent_env: Path | None) -> Runtime:
    """Return what all runtimes share: /etc, the interpreter, the agent's environment."""
    package = Path(__file__).resolve().parent.parent
    hidden = [package, package.parent / "cases", home]
    if agent_env is None:
        python = Path(os.path.realpath(sys.executable))
    else:
        python = Path(os.path.realpath(agent_env / "bin" / "python"))
    shared: tuple[str, ...] = ()
    if not python.is_relative_to("/usr"):
        shared = (str(python.parent.parent),)
    return Runtime(
        name="none",
        etc=str(prepare_etc(home)),
        python=str(python),
        agent_env=str(agent_env or ""),
        shared=shared,
        hidden=tuple(str(path.resolve()) for path in hidden if path.exists()),
    )


def find_runtime(wanted: str, base: Runtime, *, unsafe: bool) -> tuple[Runtime, str]:
    """Return (runtime, version). wanted: auto, bubblewrap, gvisor or none.

    Raises UserError when nothing that was wanted works; `none` needs `unsafe`.
    """
    if wanted == "none" or unsafe:
        if not unsafe:
            raise UserError("running without a sandbox needs --unsafe-no-sandbox")
        return replace(base, name="none", python=sys.executable), sys.version.split()[0]
    reasons = []
    probes = {"bubblewrap": probe_bubblewrap, "gvisor": probe_gvisor}
    for name in probes if wanted == "auto" else [wanted]:
        found = probes[name](base)
        if not isinstance(found, str):
            return found
        reasons.append(f"{name}: {found}")
    is_blocked = any(SWITCHED_OFF in reason for reason in reasons)
    raise UserError(f"{ALLOW if is_blocked else INSTALL} ({'; '.join(reasons)})")


def probe_bubblewrap(base: Runtime) -> tuple[Runtime, str] | str:
    """Return the runtime and its version, or why it does not work."""
    program = shutil.which("bwrap")
    if program is None:
        return "bwrap is not installed"
    version = _version([program, "--version"])
    problem = ""
    for flags in (("--disable-userns",), ()):  # known since 0.8
        runtime = replace(base, name="bubblewrap", program=program, flags=flags)
        argv = bubblewrap_argv(
            runtime, Box((base.python, "-I", "-S", "-c", _SCRIPT), is_pid_1=True)
        )
        problem = _problem(argv, {"uid": 1000, "pid": 1, "root_is_locked": True})
        if not problem:
            return runtime, version
    if any(word in problem for word in ("ermission", "not permitted", "namespace")):
        problem += f" ({SWITCHED_OFF})"
    return problem


def probe_gvisor(base: Runtime) -> tuple[Runtime, str] | str:
    """Return the runtime and its version, or why it does not work.

    An exit code proves nothing here: some platforms print nothing and exit 0.
    """
    program = shutil.which("runsc")
    if program is None:
        return "runsc is not installed"
    version = _version([program, "--version"])
    problem = ""
    for platform in ("systrap", "ptrace"):
        flags = (
            *(f"--platform={platform}", "--network=none", "--ignore-cgroups"),
            *([] if os.getuid() == 0 else ["--rootless"]),
        )
        for uds in (("--host-uds=open",), ("--fsgofer-host-uds",)):
            runtime = replace(base, name="gvisor", program=program, flags=(*flags, *uds))
            problem = _gvisor_problem(runtime)
            if not problem:
                return runtime, f"{version} {platform}"
    return problem


def _gvisor_problem(runtime: Runtime) -> str:
    with tempfile.TemporaryDirectory(prefix="fde-probe-") as folder:
        gvisor_bundle(runtime, Box((runtime.python, "-I", "-S", "-c", _SCRIPT)), folder)
        argv = [runtime.program, f"--root={folder}/state", *runtime.flags]
        return _problem(
            [*argv, "run", f"--bundle={folder}", "probe"],
            {"pid": 1, "root_is_locked": True},
            has_own_kernel=True,
        )


def _problem(argv: list[str], facts: dict[str, Any], *, has_own_kernel: bool = False) -> str:
    """Return '' if the script ran and saw an isolated machine, else why it counts as failed."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "FDE_CANARY": "1"},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return shortened(str(error), 200)
    try:
        seen = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.decode("utf-8", "replace").strip() or "it printed nothing"
        return shortened(f"exit code {done.returncode}: {said}", 300)
    facts = facts | {"names": ["lo"]}
    wrong = {name: seen.get(name) for name in facts if seen.get(name) != facts[name]}
    if "FDE_CANARY" in seen.get("env", []):
        wrong["env"] = "not empty"
    if has_own_kernel and seen.get("kernel") == Path("/proc/version").read_text(encoding="ascii"):
        wrong["kernel"] = "the host's"
    return f"it ran, but inside {wrong}" if wrong else ""


def _version(argv: list[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    found = re.search(rb"[0-9][\w.~+-]*", done.stdout)
    return found.group().decode() if found else "unknown"
