"""Looks at a cluster before runs are given to it: `fde-ray doctor --cluster`, and every sweep.

`isolation_checks` starts canary pods behind the fence and is what a sweep waits for;
`cluster_checks` looks at all the rest, too. Nothing here is changed in the cluster but canaries,
which are deleted.
"""

from .checks import Check, refuse_if_open
from .everything import cluster_checks
from .isolation import Target, isolation_checks, pod_address, target_of

__all__ = [
    "Check",
    "Target",
    "cluster_checks",
    "isolation_checks",
    "pod_address",
    "refuse_if_open",
    "target_of",
]
