"""The lab's commands: `python -m cluster.lab tools|build|images|up|status|stop|nodes|down`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from fde_ray.model.errors import UserError

from .building import build_all
from .golang import provided_go
from .images import make_images
from .layout import Layout, find_layout
from .lowering import bring_down, stop_daemon
from .machine import (
    check_room,
    check_root,
    have_system_path,
    lacking_at_all,
    lacking_for_building,
    lacking_for_use,
    room_to_build,
)
from .modules import missing_modules
from .providing import provide
from .raising import bring_up, unpack_images
from .report import status, table
from .simulation import set_nodes
from .state import locked


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 done, 1 the lab is not (wholly) up, 2 something to mend."""
    words = _parser().parse_args(arguments)
    have_system_path()
    layout = find_layout(os.environ)
    try:
        return int(words.run(layout, words) or 0)
    except (UserError, OSError, subprocess.SubprocessError) as error:
        print(f"lab: {error}", file=sys.stderr)
        return UserError.exit_code
    except KeyboardInterrupt:
        return 130


def _say(text: str) -> None:
    print(f"lab: {text}", file=sys.stderr, flush=True)


def _tools(layout: Layout, _: argparse.Namespace) -> None:
    """Whatever this machine cannot give is told now, before anything that takes long."""
    check_root()
    if missing_modules(layout.builds):
        provide(lacking_at_all, _say)
        _go(layout)
    else:
        provide(lacking_for_use, _say)
    check_room(layout.home, layout.cache)
    _say("this machine has what the lab needs")


def _build(layout: Layout, _: argparse.Namespace) -> None:
    with locked(layout, "build"):
        if missing_modules(layout.builds):
            provide(lacking_for_building, _say)
            build_all(layout.builds, _say, _go(layout))
        else:
            build_all(layout.builds, _say)


def _go(layout: Layout) -> str:
    _say(room_to_build(layout.cache))
    return provided_go(layout.cache, _say)


def _images(layout: Layout, words: argparse.Namespace) -> None:
    with locked(layout, "images"):
        make_images(layout, _say, words.names)
        unpack_images(layout, _say)


def _up(layout: Layout, _: argparse.Namespace) -> None:
    bring_up(layout, _say)
    print(f"export KUBECONFIG={layout.kubeconfig}")


def _down(layout: Layout, _: argparse.Namespace) -> None:
    bring_down(layout, _say)


def _status(layout: Layout, words: argparse.Namespace) -> int:
    found = status(layout)
    print(found.model_dump_json(indent=2) if words.json else table(found), flush=True)
    return 0 if found.state == "up" else 1


def _stop(layout: Layout, words: argparse.Namespace) -> None:
    with locked(layout):
        stop_daemon(layout, words.name)


def _nodes(layout: Layout, words: argparse.Namespace) -> None:
    set_nodes(layout, words.count, _say)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m cluster.lab", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")

    def verb(name: str, run: object, text: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    verb("tools", _tools, "install what the other commands need and look whether there is room")
    verb("build", _build, "build what is missing of the binaries (25 minutes when cold)")
    verb("images", _images, "make what is missing of the images").add_argument("names", nargs="*")
    verb("up", _up, "start what does not run of the lab and print its KUBECONFIG")
    verb("down", _down, "end the lab and leave nothing but the cache")
    verb("status", _status, "tell how it is").add_argument("--json", action="store_true")
    verb("stop", _stop, "stop one part (`up` starts it again)").add_argument("name")
    verb("nodes", _nodes, "have COUNT simulated nodes").add_argument("count", type=int)
    return parser


if __name__ == "__main__":
    sys.exit(main())
