"""A Ray cluster of this machine with two nodes, whose store is RocksDB; run as a program.

It prints its address, then does what each line of its input says, and prints what came of it, or
`done`. With the argument `labelled` its second node has the label that our members look for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from ray.cluster_utils import Cluster

from fde_ray.engine.ray.actors import AWAY_FROM_HEAD


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    labels = {AWAY_FROM_HEAD: "work"} if sys.argv[1:] == ["labelled"] else {}
    cluster.add_node(num_cpus=2, labels=labels)
    print(cluster.address, flush=True)
    actions: dict[str, Callable[[], object]] = {
        "kill store": cluster.head_node.kill_gcs_server,
        "start store": cluster.head_node.start_gcs_server,
        "kill node": lambda: cluster.remove_node(
            next(iter(cluster.worker_nodes)), allow_graceful=False
        ),
        "tell head": lambda: cluster.head_node.all_processes["raylet"][0].process.pid,
    }
    try:
        for line in sys.stdin:
            print(actions[line.strip()]() or "done", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
