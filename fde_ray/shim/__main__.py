"""Entry points of the zipapp. Each imports only what it needs."""

from __future__ import annotations

import sys

USAGE = "usage: fde-shim.pyz shim|runner|agent|evaluate|canary ..."


def main(argv: list[str]) -> int:
    # Nothing here speaks TLS, and every session starts three of these processes.
    sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]
    command, rest = (argv[0], argv[1:]) if argv else ("", [])
    if command == "shim":
        from .hosting import main as run  # noqa: PLC0415
    elif command == "runner":
        from .runner import main as run  # noqa: PLC0415
    elif command == "agent":
        from .agents.minimal import main as run  # noqa: PLC0415
    elif command == "evaluate":
        from .evaluating import main as run  # noqa: PLC0415
    elif command == "canary":
        from .canary import main as run  # noqa: PLC0415
    else:
        print(USAGE, file=sys.stderr)
        return 2
    return run(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
