"""`python -m fde_ray.sandbox.probes`: prove the isolation of a cluster's run pods from inside."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence

from fde_ray.model.clock import SystemClock
from fde_ray.model.errors import FdeRayError, UserError
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.sandbox.kubernetes.client import KubeClient

from .catalogue import ATTEMPTS
from .cluster import Cluster
from .records import Attempt, Finding, Group
from .running import Options, Suite
from .table import table

IMAGE = "localhost/fde-ray-lab/run:1"
JUDGED = "gvisor"
"""The runtime whose findings decide."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 all as expected on gVisor, 1 not, 2 something to mend."""
    words = _parser().parse_args(arguments)
    attempts = chosen(words.only, words.attempt)
    try:
        findings = asyncio.run(run(words, attempts))
    except FdeRayError as error:
        print(f"probes: {error}", file=sys.stderr)
        return UserError.exit_code
    except KeyboardInterrupt:
        return 130
    if words.json:
        print(json.dumps([each.jsonable() for each in findings], indent=2))
    else:
        print(table(attempts, findings))
    return verdict_of(findings)


def verdict_of(findings: Sequence[Finding]) -> int:
    return int(not all(each.is_as_expected for each in findings if each.runtime == JUDGED))


def chosen(groups: Sequence[str] | None, names: Sequence[str] | None) -> list[Attempt]:
    """Return the attempts of these groups and of these names; all when there are neither."""
    if not groups and not names:
        return list(ATTEMPTS)
    return [a for a in ATTEMPTS if a.group in (groups or ()) or a.id in (names or ())]


async def run(words: argparse.Namespace, attempts: Sequence[Attempt]) -> list[Finding]:
    runtimes = words.runtime or ["runc", "gvisor"]
    options = Options(
        image=words.image,
        runtimes={name: name for name in runtimes},
        listen=words.listen,
        node_pid=words.node_pid,
    )
    profile = KubernetesProfile(image=words.image, pull="Never")
    async with KubeClient.opened(profile, os.environ, SystemClock()) as client:
        suite = Suite(Cluster(client), f"https://{client.addresses[0]}", options, _say)
        return await suite.run(attempts)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} probes: {text}", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fde_ray.sandbox.probes", description=__doc__)
    add = parser.add_argument
    add("--runtime", action="append", choices=["runc", "gvisor"], help="default: both")
    add("--only", action="append", choices=[g.value for g in Group], help="a group of attempts")
    add("--attempt", action="append", metavar="ID", help="one attempt of the catalogue")
    add(
        "--image",
        default=IMAGE,
        help="of run pods: by digest, or on the node already",
    )
    add("--listen", metavar="ADDRESS", help="of this machine, where pods reach the gateway")
    add(
        "--node-pid", type=int, metavar="PID",
        help="a process in the network namespace of the node, when that is this machine; "
        "needs root. Without it there are no decoys and nobody looks from outside",
    )  # fmt: skip
    add("--json", action="store_true", help="print the findings for programs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
