"""`python -m cluster.lab.probing`: the isolation probes on the lab, told where its node is."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from fde_ray.model.errors import UserError
from fde_ray.sandbox.probes.__main__ import main as probe

from .fence import holder
from .layout import Layout, find_layout


def lab_options(layout: Layout) -> list[str]:
    """Return what the probes must be told of the lab; UserError when it is down."""
    record = holder(layout)
    if record is None:
        raise UserError("the lab is down: run `make lab-up`")
    return ["--node-pid", str(record.pid)]


def main(arguments: Sequence[str]) -> int:
    layout = find_layout(os.environ)
    try:
        options = lab_options(layout)
    except UserError as error:
        print(f"probes: {error}", file=sys.stderr)
        return UserError.exit_code
    os.environ["KUBECONFIG"] = str(layout.kubeconfig)
    return probe([*options, *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
